//! How long a peer may reach a buffer of a host's, and who ends it.

/// How a host lends its buffers, the safest way first.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Registration {
    /// A key for one command and one direction, put in force by a work request in front of the command: fast
    /// registration, or a type-2 memory window of an adapter. The peer's Send with Invalidate ends it, else a
    /// local invalidation.
    #[default]
    Window,
    /// A key for all buffers of a region, made once, for both directions. Costs nothing per command, and the peer
    /// reaches every buffer at any time for as long as the connection stands: the peer is trusted.
    Pool,
    /// A key for one command, made and ended by a call of its own, which takes an adapter long.
    Dynamic,
}

impl Registration {
    /// How memory is lent: the pool's lasts as long as the provider; what passes before, as somebody else's does, is lent
    /// for single commands only, so that its owner has it alone between them.
    #[must_use]
    pub const fn for_memory(self, passing: bool) -> Self {
        match self {
            Self::Pool if passing => Self::Dynamic,
            other => other,
        }
    }

    /// Whether putting the key in force is work posted in front of the command.
    #[must_use]
    pub const fn is_work(self) -> bool {
        matches!(self, Self::Window)
    }

    /// Whether the peer may end the key by Send with Invalidate.
    #[must_use]
    pub const fn peer_invalidates(self) -> bool {
        matches!(self, Self::Window)
    }

    /// Whether the key has to be invalid before its command is over.
    #[must_use]
    pub const fn ends_with_command(self) -> bool {
        !matches!(self, Self::Pool)
    }
}
