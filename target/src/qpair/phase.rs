//! Where a command stands, and what it holds there. Letting go of a phase lets go of its resources.
use std::ops::Range;
use std::rc::Rc;

use ironside_common::memory::Lease;
use ironside_common::nvme::{Command, DataPointer, Status, io, reservation};
use ironside_common::time::Time;
use ironside_common::verbs::{Received, Remote, Sge, Verbs};

use uuid::Uuid;

use super::execute::Room;
use crate::qpair::Namespace;

/// One command slot. The generation tells this use of it from the one before, in tokens still on their way.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) phase: Phase,
    pub(super) generation: u16,
    /// How many commands the queue pair had admitted with this one.
    pub(super) number: u64,
    /// When its capsule came.
    pub(super) arrived: Time,
}

impl Slot {
    /// The command, while the medium may still change because of it.
    pub(super) fn changing(&self) -> Option<&Active> {
        let active = match &self.phase {
            Phase::AwaitBuffer(active) | Phase::Throttled(active) => active,
            Phase::Fetching(execution)
            | Phase::Executing(execution)
            | Phase::Claiming(execution)
            | Phase::Fenced(execution) => &execution.active,
            Phase::Second(active) => active,
            Phase::Free
            | Phase::AwaitSecond(_)
            | Phase::Held(_)
            | Phase::AwaitSend(_)
            | Phase::Responding(_) => return None,
        };
        let changes = |request: &io::Request| {
            // A reservation which changes late is as bad as a late write.
            let reserves = matches!(request, io::Request::Reservation(_));
            request.changes_medium() || reserves
        };
        let changes = matches!(&active.work, Work::Io(_, request) if changes(request));
        (changes || active.second.is_some()).then_some(active)
    }
}

#[derive(Debug, Default)]
pub(super) enum Phase {
    #[default]
    Free,
    /// The first of two fused commands, until the second comes.
    AwaitSecond(Active),
    /// The second of them, until both are answered: the first does its work.
    Second(Active),
    /// Waits for its turn under a limit.
    Throttled(Active),
    /// Needs a buffer; a write needs a read credit and a send credit with it.
    AwaitBuffer(Active),
    /// An RDMA Read brings the host's data.
    Fetching(Execution),
    /// Two fused commands wait until their blocks are theirs alone.
    Claiming(Execution),
    /// Waits until blocks are free which others have claimed.
    Fenced(Execution),
    /// The medium or a controller is at work.
    Executing(Execution),
    /// An asynchronous event request, until there is an event.
    Held(Active),
    /// The answer is known and waits for the send queue.
    AwaitSend(Reply),
    /// The answer is on its way.
    Responding(Reply),
}

impl Phase {
    /// The command, until its answer is known.
    pub(super) fn active(&self) -> Option<&Active> {
        match self {
            Self::AwaitBuffer(active)
            | Self::Throttled(active)
            | Self::AwaitSecond(active)
            | Self::Second(active)
            | Self::Held(active) => Some(active),
            Self::Fetching(execution)
            | Self::Claiming(execution)
            | Self::Fenced(execution)
            | Self::Executing(execution) => Some(&execution.active),
            Self::AwaitSend(_) | Self::Responding(_) | Self::Free => None,
        }
    }

    /// The medium this command still needs, by its number.
    pub(super) fn medium(&self) -> Option<usize> {
        match self {
            Self::AwaitSend(reply) | Self::Responding(reply) => {
                reply.in_place.as_ref().map(|(namespace, _)| namespace.medium)
            }
            _ => self.active().and_then(Active::medium),
        }
    }

    /// The command, while its medium may not have been asked yet.
    pub(super) fn waiting(&mut self) -> Option<&mut Active> {
        match self {
            Self::AwaitBuffer(active)
            | Self::Throttled(active)
            | Self::AwaitSecond(active)
            | Self::Second(active) => Some(active),
            Self::Fetching(execution) | Self::Claiming(execution) | Self::Fenced(execution) => {
                Some(&mut execution.active)
            }
            Self::Free | Self::Held(_) | Self::Executing(_) | Self::AwaitSend(_) | Self::Responding(_) => {
                None
            }
        }
    }

    /// Whether the medium is at work on some of these blocks, or they are being sent from where they lie.
    pub(super) fn is_at(&self, extent: &Extent) -> bool {
        let at = match self {
            Self::Executing(execution) => execution.active.extent(),
            Self::AwaitSend(reply) | Self::Responding(reply) => {
                reply.in_place.as_ref().map(|(namespace, bytes)| Extent::new(namespace, bytes))
            }
            _ => None,
        };
        at.is_some_and(|at| at.overlaps(extent))
    }
}

/// Bytes of a namespace, which all reactors know by its UUID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    pub namespace: Uuid,
    pub start: u64,
    pub end: u64,
}

impl Extent {
    fn new(namespace: &Namespace, bytes: &Range<u64>) -> Self {
        Self { namespace: namespace.uuid, start: bytes.start, end: bytes.end }
    }

    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.start < other.end && other.start < self.end
    }
}

/// A command which passed every check.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) cid: u16,
    pub(super) pointer: DataPointer,
    pub(super) work: Work,
    /// The receive buffer, while the data in it is still needed.
    pub(super) message: Option<Received>,
    /// The slot of the command fused with this one, if that is the second of two.
    pub(super) second: Option<u16>,
    /// Why it must not begin any more: its way ended before it did.
    pub(super) no_way: Option<Status>,
}

impl Active {
    /// The namespace of an I/O command.
    pub(super) fn namespace(&self) -> Option<&Rc<Namespace>> {
        match &self.work {
            Work::Io(namespace, _) => Some(namespace),
            Work::Admin(_) => None,
        }
    }

    /// The medium of an I/O command, by its number.
    pub(super) fn medium(&self) -> Option<usize> {
        self.namespace().map(|namespace| namespace.medium)
    }

    /// The blocks an I/O command is about; all of them where only its data will tell.
    pub(super) fn extent(&self) -> Option<Extent> {
        Some(Extent::new(self.namespace()?, &self.bytes()?))
    }

    /// As [`Self::extent`], of its namespace.
    pub(super) fn bytes(&self) -> Option<Range<u64>> {
        let Work::Io(namespace, request) = &self.work else { return None };
        match *request {
            io::Request::Read { lba, blocks, .. }
            | io::Request::Write { lba, blocks, .. }
            | io::Request::Compare { lba, blocks, .. }
            | io::Request::Verify { lba, blocks, .. }
            | io::Request::WriteZeroes { lba, blocks, .. } => {
                let bytes = |lba| namespace.geometry.bytes(lba);
                Some(bytes(lba)..bytes(lba + u64::from(blocks)))
            }
            io::Request::DatasetManagement { .. } | io::Request::Copy { .. } => Some(0..u64::MAX),
            io::Request::Flush | io::Request::Reservation(_) | io::Request::Unknown(_) => None,
        }
    }

    /// The host's memory for this command's data, if it is not in the capsule.
    pub(super) fn remote(&self) -> Option<Remote> {
        match self.pointer {
            DataPointer::Keyed { remote, .. } => Some(remote),
            DataPointer::None | DataPointer::InCapsule { .. } => None,
        }
    }

    /// Bytes of host data an RDMA Read has to bring.
    pub(super) fn fetch_length(&self) -> Option<u32> {
        let from_host = match &self.work {
            Work::Admin(command) => command.is_from_host(),
            Work::Io(_, request) => matches!(
                request,
                io::Request::Write { .. }
                    | io::Request::Compare { .. }
                    | io::Request::DatasetManagement { .. }
                    | io::Request::Copy { .. }
                    | io::Request::Reservation(
                        reservation::Request::Register { .. }
                            | reservation::Request::Acquire { .. }
                            | reservation::Request::Release { .. }
                            | reservation::Request::Clear
                    )
            ),
        };
        match self.pointer {
            DataPointer::Keyed { length: length @ 1.., .. } if from_host => Some(length),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum Work {
    /// For a controller, or for whoever decides about a Connect.
    /// In a box, since it is large and rare: a phase is moved with every step of every command.
    Admin(Box<Command>),
    Io(Rc<Namespace>, io::Request),
}

/// A command being executed, step by step, and the memory it uses meanwhile.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) active: Active,
    /// The host's data, or room for the answer.
    pub(super) data: Option<Lease>,
    /// Room of its own: what Compare and Verify read.
    pub(super) scratch: Option<Lease>,
    /// Steps done; one for most commands, one for each range of a Dataset Management.
    pub(super) step: u32,
    /// Of a Copy: the first source range which the medium does not copy by itself.
    pub(super) gathers_from: Option<u32>,
}

impl Execution {
    /// It begins with memory for its data, and room of its own.
    pub(super) fn new(active: Active, (data, scratch): Room) -> Self {
        Self { active, data, scratch, step: 0, gathers_from: None }
    }

    /// Whether one operation of the medium is all there is to do.
    pub(super) fn is_all(&self) -> bool {
        let one = |request: &io::Request| {
            matches!(request, io::Request::Read { .. } | io::Request::Write { .. } | io::Request::Flush)
        };
        self.active.second.is_none() && matches!(&self.active.work, Work::Io(_, request) if one(request))
    }

    /// Where the command's data is or goes.
    pub(super) fn data_sge(&self, verbs: &impl Verbs) -> Option<Sge> {
        match (&self.data, &self.active.message, self.active.pointer) {
            (Some(lease), ..) => Some(lease.sge()),
            (None, Some(message), DataPointer::InCapsule { offset, length }) => {
                Some(super::execute::in_capsule(verbs, message, offset, length))
            }
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) cid: u16,
    pub(super) status: Status,
    pub(super) result: u64,
    pub(super) data: Option<(Sge, Remote)>,
    /// Keeps the memory of `data` until it is sent; never read.
    pub(super) _lease: Option<Lease>,
    /// The namespace whose medium's own memory `data` is, and which of its bytes.
    pub(super) in_place: Option<(Rc<Namespace>, Range<u64>)>,
    pub(super) invalidate: Option<u32>,
}

impl Reply {
    /// Send queue entries: the response, and the data ahead of it.
    pub(super) fn cost(&self) -> u32 {
        1 + u32::from(self.data.is_some())
    }
}

/// Why a connection has to end. Never an NVMe status: the host learns of it by the disconnect.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("the connection is gone")]
    Disconnected,
    #[error("a capsule of {0} bytes is shorter than a command")]
    ShortCapsule(u32),
    #[error("a work request failed with provider status {0:#x}")]
    WorkRequest(u32),
    #[error("the host sent more commands than its queue holds")]
    QueueOverrun,
    #[error("{0}")]
    Ended(&'static str),
}
