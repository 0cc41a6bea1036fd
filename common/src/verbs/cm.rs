//! Connection management: listen is the acceptor's; here is what a reactor sees of it.

use arrayvec::ArrayVec;

use super::{Address, QpHandle};

/// Private data of a connect request or reply, without what the transport put around it.
pub type PrivateData = ArrayVec<u8, 196>;

/// A peer asks for a connection. Answer with [`Connections::accept`] or [`Connections::reject`].
#[must_use = "a connect request has to be accepted or rejected"]
#[derive(Debug)]
pub struct CmRequest {
    /// The queue pair it will be once accepted.
    pub qp: QpHandle,
    pub peer: Address,
    /// The address of ours it came to; never a wildcard.
    pub local: Address,
    pub private_data: PrivateData,
    /// RDMA Reads the peer lets us have outstanding (its IRD).
    pub reads: u32,
}

/// What became of a connection.
#[expect(clippy::large_enum_variant, reason = "it travels in a box, and mostly is the largest")]
#[derive(Debug)]
pub enum CmEvent {
    Request(CmRequest),
    /// The connect of ours succeeded; here is the peer's private data.
    Established {
        qp: QpHandle,
        private_data: PrivateData,
    },
    /// The connect of ours failed. The queue pair is gone.
    Refused {
        qp: QpHandle,
        reason: RejectReason,
    },
    /// The connection has ended, by either side or by an error. Every posted work request completes as
    /// flushed, before or after this; then [`Connections::destroy`] may be called. Comes exactly once for
    /// each accepted or established queue pair.
    Disconnected {
        qp: QpHandle,
        reason: String,
    },
}

/// Why a connect failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RejectReason {
    /// The peer answered, with these bytes of private data.
    #[error("the peer rejected the connection")]
    Rejected(PrivateData),
    #[error("{0}")]
    Unreachable(String),
    #[error("no answer within the time allowed")]
    TimedOut,
    /// The peer asked for CRC32C, and we would not have it.
    #[error("the peer insists on CRC32C")]
    CrcRequired,
    #[error("the peer does not speak the protocol: {0}")]
    Protocol(String),
}

/// How a queue pair is to be made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectParameters {
    /// Receive buffers to post.
    pub receives: u16,
    /// Bytes a receive buffer holds.
    pub receive_size: u32,
    /// Send queue entries.
    pub send_queue: u32,
    /// RDMA Reads we want outstanding at most (ORD): a target's need, zero for a host.
    pub reads: u32,
}

/// What a reactor does with connections.
pub trait Connections {
    /// Posts the receives and says yes. Messages may arrive at once.
    fn accept(&mut self, request: CmRequest, parameters: ConnectParameters, private_data: &[u8]);

    fn reject(&mut self, request: CmRequest, private_data: &[u8]);

    /// Starts to connect; [`CmEvent::Established`] or [`CmEvent::Refused`] follows.
    fn connect(&mut self, to: Address, parameters: ConnectParameters, private_data: &[u8]) -> QpHandle;

    /// Ends the connection: all work completes, flushed unless it was done, then
    /// [`CmEvent::Disconnected`] comes. Harmless if it has ended already.
    fn disconnect(&mut self, qp: QpHandle);

    /// Asks to find out when everything of the peer's that has arrived here by now has been reported; see
    /// [`Self::has_caught_up`]. A provider which reports what arrives at once has nothing to do.
    fn catch_up(&mut self, _qp: QpHandle) {}

    /// Whether all that had arrived when [`Self::catch_up`] was called last has been reported since, or is
    /// among the events which wait.
    fn has_caught_up(&self, _qp: QpHandle) -> bool {
        true
    }

    /// Frees the queue pair and its handle.
    ///
    /// # Panics
    /// If work is still posted or a message still lent: a promise of ours is broken.
    fn destroy(&mut self, qp: QpHandle);
}
