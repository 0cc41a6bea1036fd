//! What reactors tell each other. Everything crosses by value; nothing is shared but counters.
use std::fmt;
use std::sync::Arc;

use ironside_common::nvme::Status;
use ironside_common::nvme::fabrics::{Connect, ConnectData};
use ironside_common::nvme::reservation::Notification;
use ironside_common::verbs::{QpHandle, Token};
use uuid::Uuid;

use super::claims::{Claim, CommandName};
use super::reservations::Reserve;
use super::roster::Member;
use crate::catalog::Catalog;
use crate::controller::Refusal;
use crate::qpair::SharedCounts;
use crate::reservation::{HostId, Install};
use crate::throttle::{Ask, HostKey};

/// One queue pair of one reactor. The generation tells it from an earlier one under the same handle.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct QueueName {
    pub reactor: usize,
    pub qp: QpHandle,
    pub generation: u32,
}

/// Who waits for the answer to a command that another reactor is about.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub(super) queue: QueueName,
    pub(super) token: Token,
}

/// Who connects: hosts are told apart by both names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostName {
    pub host_id: [u8; 16],
    pub nqn: [u8; 256],
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.nqn.iter().position(|&byte| byte == 0).unwrap_or(self.nqn.len());
        // Quoted and escaped: these are a stranger's bytes.
        write!(f, "{:?}", String::from_utf8_lossy(&self.nqn[..end]))
    }
}

impl HostName {
    pub fn of(data: &ConnectData) -> Self {
        Self { host_id: data.host_id, nqn: data.hostnqn }
    }

    /// Whether a queue which gave this name may be the other's: an I/O queue may leave out the identifier.
    pub fn may_be(&self, other: &Self) -> bool {
        self.nqn == other.nqn && (self.host_id == other.host_id || self.host_id == [0; 16])
    }
}

/// From one poll group to another, or from control to all.
#[derive(Clone, Debug)]
pub enum Message {
    /// An I/O queue wants to join a controller of yours.
    Join(Box<Join>),
    /// Your answer to it: whose controller it is.
    Joined { queue: QueueName, result: Result<HostId, Refusal> },
    /// An I/O queue of a controller of yours is gone.
    Left { cntlid: u16, queue: QueueName },
    /// The controller of your I/O queue ends it.
    End { queue: QueueName, why: &'static str },
    /// Tell me once no write which has come from this host by now is under way on your side.
    Quiesce { host: Box<HostName>, asking: QueueName },
    /// Your answer to it.
    Quiesced { asking: QueueName },
    /// You need not answer any more.
    GaveUp { asking: QueueName },
    /// A host wants a command of your I/O queue to end early.
    Abort { queue: QueueName, cid: u16, asker: Asker },
    /// Your answer to it.
    Aborted { asker: Asker, aborted: bool },
    /// A host asks the registrar for a change of its rights.
    Reserve(Box<Reserve>),
    /// The answer to it.
    Reserved { asker: Asker, status: Status },
    /// What a registrar asked to be made durable is so, or cannot be.
    Kept { uuid: Uuid, number: u64, kept: bool },
    /// This is in force from now on; tell me once nothing that it forbids is under way on your side.
    Install(Install),
    /// Your answer to it.
    Installed { uuid: Uuid, number: u64 },
    /// These hosts' rights have changed.
    Notify { uuid: Uuid, notices: Arc<[(HostId, Notification)]> },
    /// The write protection of this namespace is another now, on every reactor.
    Show { uuid: Uuid },
    /// There is a controller of mine.
    Appeared { cntlid: u16, member: Box<Member> },
    /// It is gone.
    Vanished { cntlid: u16 },
    /// A new version of the configuration: new commands find what it holds, and nothing else.
    Catalog(Arc<Catalog>),
    /// Every reactor has the new version: hosts may be told what changed for them.
    Announce,
    /// A command of mine wants blocks for itself; you keep the order of such claims on their namespace.
    Claim(Claim),
    /// Begin nothing at these blocks, and tell me once nothing is at them.
    Hold(Claim),
    /// Your answer to it.
    Clear(CommandName),
    /// All are clear: the blocks are your command's.
    Granted(CommandName),
    /// My command needs them no more.
    Release(Claim),
    /// Go on as if they had not been claimed.
    Resume(CommandName),
    /// So many commands of this queue of mine may ask for their turn at once from now on.
    Enlist { queue: QueueName, host: HostKey, entries: u16 },
    /// A command of mine asks for its turn under the limits of its subsystem, of which you have the buckets.
    Ask(Ask),
    /// Your answer to it: its turn has come.
    Turn(Ask),
    /// It does not ask any more.
    Withdraw { namespace: Uuid, name: CommandName },
    /// Its turn came too late for it: nothing was asked of the namespace.
    GiveBack(Ask),
    /// This queue of mine has ended, and asks for nothing any more.
    Forget(QueueName),
    /// Finish what is under way, then disconnect everyone.
    Drain,
}

/// The Connect of an I/O queue, on its way to the reactor of its controller.
#[derive(Clone, Debug)]
pub struct Join {
    pub queue: QueueName,
    pub connect: Connect,
    pub data: ConnectData,
    /// What the queue does: the controller's sign of life, and its health.
    pub counts: Arc<SharedCounts>,
}
