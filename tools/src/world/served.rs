//! What the target of a world serves, and to whom: it changes while hosts are at work.
use std::sync::Arc;

use ironside_common::nvme::Nqn;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::provider::sim::Choices;
use ironside_common::verbs::Address;
use ironside_target::backend::OpenMedium;
use ironside_target::catalog::{Access, Catalog, Hosts, Namespace, Subsystem};
use ironside_target::reservation::State;
use ironside_target::throttle::{HostLimits, Limit};

use super::claimant::{SHARED, SHARED_BLOCKS};
use super::feast::{self, TABLE, TABLE_BLOCKS};
use super::raw::host_id;
use super::{BLOCK_SIZE, GUESTS, host, host_nqn, limits, nqn, uuid};

/// What is served: the first namespaces, of so many blocks, each in a group of its own.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) version: u64,
    pub(super) present: u32,
    pub(super) blocks: u64,
    /// The state of each group.
    pub(super) access: Vec<AnaState>,
    /// The number of a host, and the namespace it does not see.
    pub(super) hidden: Option<(u8, u32)>,
    /// The number of a host which is not admitted.
    pub(super) removed: Option<u8>,
    /// What each namespace may be asked for, and each host may ask for.
    pub(super) limits: Vec<Limit>,
    pub(super) host_limit: Limit,
}

impl Served {
    pub(super) fn draw_limits(&mut self, choices: &mut impl Choices) {
        self.limits.fill_with(|| limits::draw(choices));
        self.host_limit = if choices.chance(40) { limits::draw(choices) } else { Limit::default() };
    }

    /// The catalog of it, with the namespace which claimants share and the reservations that one begins with. What
    /// namespaces are made of is the world's own affair.
    pub(super) fn catalog(&self, address: Address, kept: Option<Arc<State>>) -> Arc<Catalog> {
        let namespace = |nsid, blocks: u64| {
            let medium =
                OpenMedium::faulty(blocks * u64::from(BLOCK_SIZE), BLOCK_SIZE).expect("a size that fits");
            let hosts = match self.hidden {
                Some((host, hidden)) if hidden == nsid => Hosts::Listed(all_but(Some(host), self.removed)),
                _ => Hosts::Any,
            };
            let limit = self.limits.get(nsid as usize - 1).copied().unwrap_or_default();
            Namespace { ana_group: nsid, hosts, limit, ..Namespace::whole(nsid, uuid(nsid), medium) }
        };
        let shared = Namespace { kept, ..namespace(SHARED, SHARED_BLOCKS) };
        let others = [shared, namespace(TABLE, TABLE_BLOCKS)];
        let namespaces = (1..=self.present).map(|nsid| namespace(nsid, self.blocks)).chain(others);
        let access = (1..).zip(&self.access).map(|(group, &state)| Access { group, listen: None, state });
        let hosts = match self.removed {
            None => Hosts::Any,
            removed => Hosts::Listed(all_but(removed, None)),
        };
        let subsystem = Subsystem::new(nqn(), "WORLD", hosts, vec![address], namespaces.collect());
        let limits = HostLimits { each: self.host_limit, named: Vec::new() };
        let subsystem = subsystem.expect("a subsystem by its form").with_access(access.collect());
        let subsystem = subsystem.with_host_limits(limits);
        Arc::new(Catalog::new(self.version, vec![subsystem]).expect("one subsystem"))
    }
}

/// The names of all hosts there may be, these apart.
fn all_but(one: Option<u8>, other: Option<u8>) -> Vec<Nqn> {
    let others = (0..host::HOSTS_MAX).filter(|&host| Some(host) != one && Some(host) != other).map(host::id);
    others.chain(GUESTS.chain(feast::NUMBERS).map(host_id)).map(host_nqn).collect()
}
