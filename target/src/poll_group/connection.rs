//! What a poll group knows of one connection beside its queue pair.
use std::sync::Arc;

use ironside_common::nvme::Nqn;
use ironside_common::nvme::fabrics::Connect;
use ironside_common::time::Time;
use ironside_common::verbs::{Address, Token};

use super::HostName;
use super::authenticate::Authentication;
use crate::limits::Place;
use crate::qpair::{Qpair, SharedCounts};
use crate::throttle::HostKey;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) qpair: Qpair,
    pub(super) generation: u32,
    pub(super) peer: Address,
    pub(super) local: Address,
    /// Entries of the queue, as the host named them when it connected.
    pub(super) entries: u16,
    pub(super) accepted: Time,
    /// The controller it belongs to, once its Connect succeeded.
    pub(super) membership: Option<Membership>,
    /// A Connect is being decided about.
    pub(super) connecting: bool,
    /// That Connect waits until old writes of its host have ended.
    pub(super) held: bool,
    /// The subsystem of an I/O queue, as its Connect named it.
    pub(super) subnqn: Option<[u8; 256]>,
    /// The Connect which another reactor decides about.
    pub(super) joining: Option<Joining>,
    /// How far its host is known, if it has to be.
    pub(super) authentication: Option<Box<Authentication>>,
    pub(super) disconnecting: bool,
    pub(super) disconnected: bool,
    /// Named by the queue of those who wait for a buffer.
    pub(super) waiting: bool,
    /// By what its commands are known where they ask for their turn; nothing before it belongs to a controller.
    pub(super) asks: Option<HostKey>,
    pub(super) counts: Arc<SharedCounts>,
    /// Which sum of the group it adds to, once it belongs to a controller.
    pub(super) tally: Option<usize>,
    pub(super) _place: Place,
}

#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) cntlid: u16,
    pub(super) qid: u16,
    pub(super) host: HostName,
}

#[derive(Debug)]
pub(super) struct Joining {
    pub(super) token: Token,
    pub(super) membership: Membership,
    pub(super) connect: Connect,
    pub(super) subnqn: [u8; 256],
}

impl Connection {
    /// The subsystem of an I/O queue in words.
    pub(super) fn subsystem(&self) -> String {
        let field = self.subnqn.as_ref().map_or(&[][..], |field| field);
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..end]).into_owned()
    }

    /// The name of the host whose queue it is or is about to be.
    pub(super) fn host(&self) -> Option<Nqn> {
        let joining = || Some(&self.joining.as_ref()?.membership);
        Nqn::from_field(&self.membership.as_ref().or_else(joining)?.host.nqn).ok()
    }

    /// A few stores by the one thread that owns the queue.
    pub(super) fn publish_counts(&mut self) {
        if let Some(counts) = self.qpair.new_counts() {
            self.counts.publish(counts);
        }
    }

    /// Whether it is a queue of this host.
    pub(super) fn is_of(&self, host: &HostName) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.host.may_be(host))
    }
}
