//! One 64-bit name for one operation in flight: it rides as `wr_id` on the send queue and as `user_data`
//! in io_uring alike.

/// What kind of operation a token names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// Target: RDMA Read of a host's data.
    Fetch = 1,
    /// Target: RDMA Write and Send of a response.
    Respond = 2,
    /// Target: an operation of a backend, or of a controller.
    Medium = 3,
    /// Host: Send of a command.
    Command = 4,
    /// Host: local invalidation of an exposed buffer.
    Invalidate = 5,
    /// Reactor: readiness of a socket, a mailbox, a timer; `slot` and `qpair` are the reactor's own.
    Reactor = 6,
}

impl Kind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Fetch,
            2 => Self::Respond,
            3 => Self::Medium,
            4 => Self::Command,
            5 => Self::Invalidate,
            6 => Self::Reactor,
            _ => return None,
        })
    }
}

/// Kind, owner, slot, and a generation which tells this use of the slot from the one before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Token {
    pub kind: Kind,
    pub generation: u16,
    pub qpair: u16,
    pub slot: u16,
}

impl Token {
    pub const fn to_bits(self) -> u64 {
        (self.kind as u64) << 56
            | (self.generation as u64) << 32
            | (self.qpair as u64) << 16
            | self.slot as u64
    }

    /// `None` means the number is not one of ours: a bug of a provider, never a peer's doing.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        let Some(kind) = Kind::from_byte((bits >> 56) as u8) else { return None };
        Some(Self { kind, generation: (bits >> 32) as u16, qpair: (bits >> 16) as u16, slot: bits as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_64_bits() {
        for kind in 1..=6 {
            let token = Token {
                kind: Kind::from_byte(kind).unwrap(),
                generation: 0xBEEF,
                qpair: 0x1234,
                slot: 0xFFFF,
            };
            assert_eq!(Token::from_bits(token.to_bits()), Some(token));
        }
        assert_eq!(Token::from_bits(0), None);
        assert_eq!(Token::from_bits(7 << 56), None);
    }
}
