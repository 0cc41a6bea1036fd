//! What Ironside needs of RDMA, and no more.
//!
//! Three small traits: [`TargetVerbs`] (what the target posts), [`HostVerbs`] (what the initiator posts)
//! and [`Connections`] (connection management). All three stand on [`Verbs`], the completion side. A
//! provider is one value owned by one reactor; queue pairs are handles into it.
//!
//! *Posting never fails, it completes*: work posted to a broken queue pair completes as flushed. Posting
//! past the limits is a bug of ours and panics. Differences between adapters are data in [`Limits`].
mod address;
mod cm;
mod registration;
mod sge;
mod token;

pub use address::{Address, AddressError, SocketPath};
pub use cm::{CmEvent, CmRequest, ConnectParameters, Connections, PrivateData, RejectReason};
pub use registration::Registration;
pub use sge::{Access, Remote, Sge};
pub use token::{Kind, Token};

/// One queue pair of one provider. Never reused while a completion which names it may still come.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QpHandle(pub u16);

/// What one queue pair can take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Work requests which may be posted to the send queue and not yet be completed.
    pub send_queue: u32,
    /// RDMA Reads which may be outstanding (our ORD, after negotiation with the peer's IRD).
    pub reads: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WcStatus {
    Success,
    /// The queue pair broke before this work was done.
    Flushed,
    /// This work broke the queue pair. The number is the provider's own, for the log.
    Failed(u32),
}

/// The completion of one posted work request. Receives arrive as [`Received`] instead.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wc {
    pub qp: QpHandle,
    pub token: Token,
    pub status: WcStatus,
}

/// One message in one receive buffer, lent by the provider until [`Verbs::repost`] takes it back.
///
/// A duty: every `Received` is given back, also when its queue pair has broken meanwhile.
#[must_use = "a receive buffer has to be given back by Verbs::repost"]
#[derive(Debug, Eq, PartialEq)]
pub struct Received {
    pub qp: QpHandle,
    /// The provider's number of the buffer.
    pub buffer: u32,
    /// Bytes received.
    pub length: u32,
    /// The key which the peer's Send with Invalidate made invalid, if it was one.
    pub invalidated: Option<u32>,
}

/// What a provider has to say. Flushed receives are not reported: the provider keeps its buffers.
#[derive(Debug)]
pub enum Event {
    Received(Received),
    Completed(Wc),
    Connection(Box<CmEvent>),
}

/// The completion side, common to both roles.
pub trait Verbs {
    fn limits(&self, qp: QpHandle) -> Limits;

    /// The next thing that happened, oldest first.
    fn poll(&mut self) -> Option<Event>;

    /// The bytes of a received message: `length` of them.
    fn message(&self, received: &Received) -> &[u8];

    /// The part of a received message from byte `offset` to its end, named for local work requests and
    /// the storage ring. Buffers are laid out so that the part at offset 64 (in-capsule data) is aligned
    /// to 512 bytes.
    fn message_sge(&self, received: &Received, offset: u32) -> Sge;

    /// Posts the receive buffer again. The peer may fill it at once.
    fn repost(&mut self, received: Received);
}

/// What the target posts.
pub trait TargetVerbs: Verbs {
    /// RDMA Read of host memory into `into`; completes with `token`. Never more of these outstanding than
    /// `Limits::reads`. Costs one send queue entry.
    fn post_fetch(&mut self, qp: QpHandle, token: Token, from: Remote, into: Sge);

    /// One chain: optionally RDMA Write of the data, then Send (with Invalidate) of the 16-byte response.
    /// Only the Send is signaled, and the fabric's ordering makes its completion stand for both. Costs one
    /// send queue entry, and one more with data.
    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        data: Option<(Sge, Remote)>,
        response: &[u8; 16],
        invalidate: Option<u32>,
    );
}

/// One fast-registration memory region (or type-2 memory window) of one queue pair, made at connect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MrHandle(pub u16);

/// One buffer exposed to the peer for one command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exposure {
    pub mr: MrHandle,
    pub sge: Sge,
    pub access: Access,
    /// What [`HostVerbs::prepare`] said the peer will have to name.
    pub remote: Remote,
    pub registration: Registration,
}

/// What the initiator posts.
pub trait HostVerbs: Verbs {
    /// Makes one memory region for fast registration. Called between connect and the first command only.
    fn allocate_mr(&mut self, qp: QpHandle) -> MrHandle;

    /// Chooses the key and address under which `sge` will be exposed by the next [`Self::post_command`]
    /// which carries the resulting exposure. A key that ends with its command differs from the one before it.
    /// How it is registered is the provider's choice or its owner's; the exposure says.
    fn prepare(&mut self, qp: QpHandle, mr: MrHandle, sge: Sge, access: Access) -> Exposure;

    /// One chain: optionally what puts the key of an exposure in force ([`Registration::is_work`]), then Send of
    /// the 64-byte command, with `data` (in-capsule) behind it. Only the Send is signaled. Costs one send queue
    /// entry, and one more with an exposure.
    fn post_command(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    );

    /// Takes an exposed buffer back: after its completion the peer can no longer touch it. Costs one send
    /// queue entry. A key which the peer's Send with Invalidate has named needs none of this, nor does one that
    /// does not end with its command.
    fn post_invalidate(&mut self, qp: QpHandle, token: Token, key: u32);
}
