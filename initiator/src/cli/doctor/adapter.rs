//! The RDMA adapter behind an interface, if there is one.
use std::path::PathBuf;

use super::Finding;

/// What carries an adapter's packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "ibv"), allow(dead_code, reason = "without libibverbs no adapter is ever seen"))]
pub(super) enum Layer {
    InfiniBand,
    Roce,
    Iwarp,
}

/// One port of an adapter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) port: u8,
    pub(super) layer: Layer,
    /// Bytes.
    pub(super) active_mtu: u32,
}

impl Adapter {
    /// Where the kernel describes its port.
    pub(super) fn place(&self) -> PathBuf {
        PathBuf::from("/sys/class/infiniband").join(&self.name).join("ports").join(self.port.to_string())
    }
}

#[cfg(not(feature = "ibv"))]
pub(super) fn look(_: &str, findings: &mut Vec<Finding>) -> Option<Adapter> {
    let found = "this program was built without RDMA adapters; software RDMA needs none";
    findings.push(Finding::ok("adapter", found));
    None
}

#[cfg(feature = "ibv")]
pub(super) use seen::look;

#[cfg(feature = "ibv")]
mod seen {
    use ironside_common::provider::ibv::{self, Absence, Device, DeviceLimits, Port};

    use super::{Adapter, Finding, Layer};

    /// The adapter which owns an interface, and what is to be said of it.
    pub(in super::super) fn look(interface: &str, findings: &mut Vec<Finding>) -> Option<Adapter> {
        let devices = match ibv::devices() {
            Ok(devices) => devices,
            Err(absence) => {
                findings.push(none(&absence));
                return None;
            }
        };
        let Some(device) = devices.iter().find(|device| device.owns(interface)) else {
            let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
            let found = format!(
                "none owns {interface} ({} others do not); software RDMA needs none",
                names.join(", ")
            );
            findings.push(Finding::ok("adapter", found));
            return None;
        };
        examine(device, interface, findings)
    }

    fn none(absence: &Absence) -> Finding {
        match absence {
            Absence::Driver(_) | Absence::Refused(_) => {
                Finding::warn("adapter", "there is one that cannot be used", absence.to_string())
            }
            _ => Finding::ok("adapter", format!("none, and software RDMA needs none ({absence})")),
        }
    }

    fn examine(device: &Device, interface: &str, findings: &mut Vec<Finding>) -> Option<Adapter> {
        let Device { name, transport, details, .. } = device;
        let (limits, ports) = match details {
            Ok(details) => details,
            Err(why) => {
                let found = format!("{name} of {interface} cannot be asked");
                findings.push(Finding::fail("adapter", found, why));
                return None;
            }
        };
        let of_interface = |port: &&Port| port.gids.iter().any(|gid| gid.interface == interface);
        let port = ports.iter().find(of_interface).or_else(|| ports.first())?;
        let layer = match (*transport, port.link_layer) {
            ("iWARP", _) => Layer::Iwarp,
            (_, "Ethernet") => Layer::Roce,
            _ => Layer::InfiniBand,
        };
        findings.push(state(name, interface, layer, port));
        if layer == Layer::Roce {
            findings.push(gid_type(interface, port));
        }
        findings.push(registration(limits));
        Some(Adapter { name: name.clone(), port: port.number, layer, active_mtu: port.active_mtu })
    }

    fn state(name: &str, interface: &str, layer: Layer, port: &Port) -> Finding {
        let kind = match layer {
            Layer::InfiniBand => "InfiniBand",
            Layer::Roce => "RoCE",
            Layer::Iwarp => "iWARP",
        };
        let found = format!("{name} port {} of {interface} is {}, {kind}", port.number, port.state);
        if port.state == "active" {
            return Finding::ok("adapter", found);
        }
        let remedy = match layer {
            Layer::InfiniBand => {
                "InfiniBand takes a subnet manager (opensm) on some switch or host; check the cable"
            }
            _ => "bring its interface up (ip link set dev INTERFACE up); check cable and transceiver",
        };
        Finding::fail("adapter", found, remedy)
    }

    fn gid_type(interface: &str, port: &Port) -> Finding {
        let of_interface = port.gids.iter().filter(|gid| gid.interface == interface);
        match of_interface.clone().find(|gid| gid.kind == "RoCE v2") {
            Some(gid) => Finding::ok("gid", format!("{} is RoCE v2, index {}", gid.address, gid.index)),
            None if of_interface.clone().next().is_none() => Finding::fail(
                "gid",
                format!("{interface} has no GID"),
                "give the interface an address (ip address add)",
            ),
            None => Finding::warn(
                "gid",
                format!("{interface} has GIDs of RoCE v1 only, which no router passes on"),
                "switch RoCE v2 on in the driver, and have rdma_cm use it: cma_roce_mode of rdma-core, or \
                 /sys/kernel/config/rdma_cm/DEVICE/ports/1/default_roce_mode",
            ),
        }
    }

    fn registration(limits: &DeviceLimits) -> Finding {
        if limits.memory_windows > 0 {
            let found = format!("{} memory windows: a key for each command", limits.memory_windows);
            Finding::ok("registration", found)
        } else {
            Finding::warn(
                "registration",
                "no memory windows: a target reaches all buffers of an attachment while it is connected",
                "attach by this adapter to targets you trust, or take --registration dynamic, which is slower",
            )
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::super::Verdict;
        use super::*;

        fn port(state: &'static str, kind: &str) -> Port {
            let address = std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped();
            let gid = ibv::Gid { index: 1, address, kind: kind.into(), interface: "eth7".into() };
            Port { number: 1, state, link_layer: "Ethernet", active_mtu: 1024, gids: vec![gid] }
        }

        fn device(transport: &'static str, port: Port, memory_windows: i32) -> Device {
            let limits = DeviceLimits {
                queue_pairs: 1,
                work_requests: 1,
                scatter_entries: 1,
                completion_queue_entries: 1,
                memory_regions: 1,
                memory_region_size: 1,
                memory_windows,
                reads_in: 1,
                reads_out: 1,
                shared_receive_queues: 1,
            };
            let details = Ok((limits, vec![port]));
            Device { name: "mock0".into(), node_guid: String::new(), transport, details }
        }

        fn verdicts(device: &Device) -> Vec<(&'static str, Verdict)> {
            let mut findings = Vec::new();
            examine(device, "eth7", &mut findings);
            findings.into_iter().map(|finding| (finding.check, finding.verdict)).collect()
        }

        #[test]
        fn an_adapter_is_judged_by_its_port_its_gids_and_its_windows() {
            let good = device("InfiniBand", port("active", "RoCE v2"), 7);
            let all = [("adapter", Verdict::Ok), ("gid", Verdict::Ok), ("registration", Verdict::Ok)];
            assert_eq!(verdicts(&good), all);
            let old = device("InfiniBand", port("down", "IB/RoCE v1"), 7);
            let all = [("adapter", Verdict::Fail), ("gid", Verdict::Warn), ("registration", Verdict::Ok)];
            assert_eq!(verdicts(&old), all);
            let iwarp = device("iWARP", port("active", ""), 0);
            assert_eq!(verdicts(&iwarp), [("adapter", Verdict::Ok), ("registration", Verdict::Warn)]);
            let closed = Device { details: Err("no rights".into()), ..good };
            assert_eq!(verdicts(&closed), [("adapter", Verdict::Fail)]);
        }

        #[test]
        fn no_adapter_is_well_but_one_without_a_driver_is_told() {
            assert_eq!(none(&Absence::None).verdict, Verdict::Ok);
            assert_eq!(none(&Absence::Driver("vendor0".into())).verdict, Verdict::Warn);
        }
    }
}
