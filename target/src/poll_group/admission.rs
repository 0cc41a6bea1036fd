//! Who is one too many: connections and controllers beyond a limit are refused as they come, before they cost anything.
use std::net::IpAddr;

use ironside_common::nvme::Status;
use ironside_common::nvme::fabrics::ConnectData;
use ironside_common::nvme::private_data::RejectStatus;
use ironside_common::verbs::{Address, Connections, TargetVerbs};

use super::{PollGroup, Storage};
use crate::controller::Refusal;
use crate::limits::{Full, Place, Resource, network};
use crate::throttle::HostKey;

impl<V: TargetVerbs + Connections, B: Storage> PollGroup<V, B> {
    /// A place for one more connection of a peer.
    pub(super) fn admit_connection(&self, peer: Address) -> Result<Place, RejectStatus> {
        let ip: IpAddr = peer.ip();
        let (whole, share) = (Resource::Connections, Resource::ConnectionsPerAddress);
        let limits = self.catalog.limits();
        let (most, most_each) = (limits.of(whole), limits.of(share));
        self.settings.census.connections.take(network(ip), most, most_each).map_err(|full| {
            let (limit, most) = reached(full, (whole, most), (share, most_each));
            tracing::warn!(%peer, %limit, most, "connection rejected: there are as many as the limit says");
            RejectStatus::NO_RESOURCES
        })
    }

    /// A place for one more controller of the host at the subsystem which a Connect names. Its host may try again: others
    /// may have left.
    pub(super) fn admit_controller(&self, data: &ConnectData) -> Result<Place, Refusal> {
        let host = HostKey::new(&data.subnqn, &data.hostnqn).number();
        let (whole, share) = (Resource::Controllers, Resource::ControllersPerHost);
        let limits = self.catalog.limits();
        let (most, most_each) = (limits.of(whole), limits.of(share));
        self.settings.census.controllers.take(host, most, most_each).map_err(|full| {
            let (limit, most) = reached(full, (whole, most), (share, most_each));
            let host = super::HostName::of(data);
            tracing::warn!(%host, %limit, most, "connect refused: there are as many as the limit says");
            Status::CONNECT_CONTROLLER_BUSY.with_dnr(false).into()
        })
    }
}

const fn reached(full: Full, whole: (Resource, u64), share: (Resource, u64)) -> (Resource, u64) {
    match full {
        Full::Whole => whole,
        Full::Share => share,
    }
}
