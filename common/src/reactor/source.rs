//! Who a ring completion of kind `Reactor` belongs to: the `qpair` of its token. `slot` and `generation`
//! are the source's own, for instance to tell its connections apart.
use crate::verbs::{Kind, Token};

/// Sockets of the software RDMA provider.
pub const WIRE: u16 = 1;
/// The eventfd of a mailbox.
pub const MAILBOX: u16 = 2;
/// Sockets and devices of the initiator's exports.
pub const EXPORT: u16 = 3;
/// The adapter's completion and event channels.
pub const ADAPTER: u16 = 4;
/// Listening sockets.
pub const LISTENER: u16 = 5;
/// Control connections.
pub const CONTROL: u16 = 6;

/// The token of a source.
#[must_use]
pub const fn token(source: u16, slot: u16, generation: u16) -> Token {
    Token { kind: Kind::Reactor, generation, qpair: source, slot }
}
