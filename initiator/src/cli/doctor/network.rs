//! The way packets take: which interface, and whether it is fit.
use std::io;
use std::net::SocketAddr;

use super::Finding;
use super::adapter::{Adapter, Layer};
use super::system::{Machine, line};
use crate::attach::Route;

/// What an Ethernet frame must hold for RoCE packets of 4096 bytes, with all headers.
const ROCE_MTU: u32 = 4200;

pub(super) fn check_route(to: SocketAddr, route: &io::Result<Route>) -> Finding {
    match route {
        Ok(Route { from, interface }) => {
            Finding::ok("route", format!("{} by {interface}, from {from}", to.ip()))
        }
        Err(error) => Finding::fail(
            "route",
            format!("{} cannot be reached: {error}", to.ip()),
            "give an interface an address of the target's network (ip address add), or a route to it (ip route add)",
        ),
    }
}

pub(super) fn check_link(machine: &Machine, interface: &str, adapter: Option<&Adapter>) -> Vec<Finding> {
    let place = machine.interface(interface);
    let number = |name: &str| line(&place.join(name)).and_then(|text| text.parse::<u32>().ok());
    let state = line(&place.join("operstate")).unwrap_or_else(|| "unknown".into());
    // Loopback and tunnels do not know their state, but say that there is a carrier.
    let up = state == "up" || state == "unknown" && number("carrier") == Some(1);
    let speed = number("speed").filter(|speed| *speed < u32::MAX / 2);
    let speed = speed.map_or_else(String::new, |speed| format!(", {speed} Mb/s"));
    let link = if up {
        Finding::ok("link", format!("{interface} is up{speed}"))
    } else {
        let remedy =
            format!("ip link set dev {interface} up; check cable, transceiver and the switch's port");
        Finding::fail("link", format!("{interface} is {state}"), remedy)
    };
    let mtu = number("mtu").map(|mtu| judge_mtu(interface, mtu, adapter));
    [Some(link), mtu].into_iter().flatten().collect()
}

fn judge_mtu(interface: &str, mtu: u32, adapter: Option<&Adapter>) -> Finding {
    let layer = adapter.map(|adapter| adapter.layer);
    let active =
        adapter.map_or_else(String::new, |adapter| format!(", RDMA packets of {}", adapter.active_mtu));
    let found = format!("{mtu} bytes on {interface}{active}");
    if layer == Some(Layer::Roce) && mtu < ROCE_MTU {
        let remedy = format!(
            "ip link set dev {interface} mtu 9000 here, at the target and on every switch between: from {ROCE_MTU} on, RoCE sends packets of 4096 bytes"
        );
        return Finding::warn("mtu", found, remedy);
    }
    Finding::ok("mtu", found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Verdict;
    use super::*;

    #[test]
    fn an_address_without_a_route_is_a_failure() {
        let lost = check_route("192.0.2.1:1".parse().unwrap(), &Err(io::Error::other("no route to host")));
        assert_eq!(lost.verdict, Verdict::Fail);
    }

    #[test]
    fn a_link_that_is_down_and_packets_too_small_for_roce_are_seen() {
        let place = tempfile::tempdir().unwrap();
        let machine = Machine { sys: place.path().into(), proc: place.path().into() };
        let eth = machine.interface("eth7");
        fs::create_dir_all(&eth).unwrap();
        let verdicts = |adapter| -> Vec<_> {
            let found = check_link(&machine, "eth7", adapter);
            found.into_iter().map(|finding| (finding.check, finding.verdict)).collect()
        };
        fs::write(eth.join("operstate"), "down\n").unwrap();
        fs::write(eth.join("mtu"), "1500\n").unwrap();
        assert_eq!(verdicts(None), [("link", Verdict::Fail), ("mtu", Verdict::Ok)]);
        fs::write(eth.join("operstate"), "up\n").unwrap();
        fs::write(eth.join("speed"), "100000\n").unwrap();
        let adapter = Adapter { name: "mock0".into(), port: 1, layer: Layer::Roce, active_mtu: 1024 };
        assert_eq!(verdicts(Some(&adapter)), [("link", Verdict::Ok), ("mtu", Verdict::Warn)]);
        assert!(check_link(&machine, "eth7", None)[0].found.contains("100000 Mb/s"));
    }
}
