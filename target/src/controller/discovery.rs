//! The discovery log as one host sees it on one connection (NVM Express base specification 2.2, section
//! 5.1.12.3.1).

use ironside_common::nvme::Nqn;
use ironside_common::nvme::discovery::{Entry, RdmaAttributes, SubsystemType, TransportRequirements};
use ironside_common::verbs::Address;

use crate::catalog::{Catalog, Subsystem, Way};

/// Every way to every subsystem `host` may have, the discovery subsystem itself first. `local` is the address
/// of ours the host came to: behind a wildcard it is the one known to be reachable.
pub(super) fn entries<'a>(
    catalog: &'a Catalog,
    host: &'a Nqn,
    local: Address,
) -> impl Iterator<Item = Entry> + 'a {
    let local = local.canonical();
    let here = catalog.listeners().iter().find(|listener| reachable(listener.address, local) == Some(local));
    let (port_id, by) = here.map_or((0, Way::Software), |listener| (listener.port_id, listener.by));
    let discovery = entry(SubsystemType::CURRENT_DISCOVERY, &Nqn::discovery(), local, port_id, by);
    let allowed = catalog.subsystems().iter().filter(|subsystem| subsystem.allows(host));
    std::iter::once(discovery).chain(allowed.flat_map(move |subsystem| ways_to(catalog, subsystem, local)))
}

fn ways_to<'a>(
    catalog: &'a Catalog,
    subsystem: &'a Subsystem,
    local: Address,
) -> impl Iterator<Item = Entry> + 'a {
    catalog.listeners().iter().filter(|listener| subsystem.listens_at(listener.address)).filter_map(
        move |listener| {
            let address = reachable(listener.address, local)?;
            Some(entry(SubsystemType::NVM, subsystem.nqn(), address, listener.port_id, listener.by))
        },
    )
}

fn entry(subtype: SubsystemType, nqn: &Nqn, at: Address, port_id: u16, by: Way) -> Entry {
    let provider = match by {
        Way::Software => RdmaAttributes::PROVIDER_IWARP,
        // Whether InfiniBand or which RoCE, each connection finds out for itself.
        Way::Adapter => RdmaAttributes::PROVIDER_UNSPECIFIED,
    };
    Entry {
        transport_requirements: TransportRequirements::FLOW_CONTROL_OPTIONAL.0,
        ..Entry::rdma(subtype, nqn, at, port_id, provider)
    }
}

/// Where a listener can be reached, for a host that reached us at `local`. Nothing is known of a wildcard of
/// the other family. Whoever came over a network is not told of sockets of this machine.
fn reachable(listener: Address, local: Address) -> Option<Address> {
    let Address::Ip(bound) = listener.canonical() else { return local.is_on_machine().then_some(listener) };
    if !bound.ip().is_unspecified() {
        return Some(bound.into());
    }
    let local = local.socket()?;
    (listener.ip().is_ipv6() || local.is_ipv4()).then(|| Address::from((local.ip(), bound.port())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Hosts;
    use crate::catalog::tests::{nqn, subsystem};

    fn log(catalog: &Catalog, host: &str, local: &str) -> Vec<(String, Option<std::net::SocketAddr>, u16)> {
        let describe =
            |entry: Entry| (entry.subnqn(), entry.socket_address(), u16::from(entry.subsystem_type));
        entries(catalog, &nqn(host), local.parse().unwrap()).map(describe).collect()
    }

    #[test]
    fn a_host_sees_what_it_may_have_at_addresses_it_can_reach() {
        let subsystems = vec![
            subsystem("a", Hosts::Any, &["0.0.0.0:4420", "[::1]:4421"], &[]),
            subsystem("b", Hosts::Listed(vec![nqn("friend")]), &["10.0.0.1:4420"], &[]),
        ];
        let catalog = Catalog::new(1, subsystems).unwrap();
        let at = |address: &str| Some(address.parse().unwrap());
        let (a, b) = (nqn("a").to_string(), nqn("b").to_string());
        let discovery = Nqn::discovery().to_string();
        assert_eq!(
            log(&catalog, "friend", "10.0.0.7:4420"),
            [
                (discovery.clone(), at("10.0.0.7:4420"), 3),
                (a.clone(), at("10.0.0.7:4420"), 2),
                (a.clone(), at("[::1]:4421"), 2),
                (b, at("10.0.0.1:4420"), 2),
            ]
        );
        assert_eq!(
            log(&catalog, "stranger", "[::1]:4421"),
            [(discovery, at("[::1]:4421"), 3), (a, at("[::1]:4421"), 2)]
        );
    }

    #[test]
    fn only_who_is_on_this_machine_is_told_of_its_sockets() {
        let listen = ["0.0.0.0:4420", "192.0.2.1:4420", "/run/ironside.sock"];
        let catalog = Catalog::new(1, vec![subsystem("a", Hosts::Any, &listen, &[])]).unwrap();
        let addresses = |local: &str| -> Vec<(u8, String)> {
            entries(&catalog, &nqn("host"), local.parse().unwrap())
                .map(|entry| (entry.address_family().0, entry.address()))
                .collect()
        };
        let (network, here) = ((1, "192.0.2.1".to_owned()), (254, "/run/ironside.sock".to_owned()));
        assert_eq!(addresses("/run/ironside.sock"), [here.clone(), network.clone(), here]);
        assert_eq!(addresses("192.0.2.1:4420"), [network.clone(), network.clone(), network]);
    }

    #[test]
    fn ipv4_over_an_ipv6_wildcard_is_ipv4() {
        let catalog = Catalog::new(1, vec![subsystem("a", Hosts::Any, &["[::]:4420"], &[])]).unwrap();
        for (_, address, _) in log(&catalog, "host", "[::ffff:10.0.0.1]:4420") {
            assert_eq!(address, Some("10.0.0.1:4420".parse().unwrap()));
        }
        let first = entries(&catalog, &nqn("host"), "10.0.0.1:4420".parse().unwrap()).next().unwrap();
        assert_eq!((first.port_id.get(), first.transport_requirements), (1, 4));
    }
}
