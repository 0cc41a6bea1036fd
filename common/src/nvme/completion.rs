//! The 16-byte completion queue entry: the whole of a response capsule.
use std::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

/// A completion queue entry as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// DW0 and DW1: what it means depends on the command.
    pub result: U64,
    /// How far the controller has taken commands from the submission queue.
    pub sqhd: U16,
    pub sqid: U16,
    pub cid: U16,
    /// The status field, with the phase in bit 0, which is 0 over fabrics. See [`Completion::status`].
    pub status_field: U16,
}

const _: () = assert!(size_of::<Completion>() == Completion::SIZE);

impl Completion {
    /// In bytes.
    pub const SIZE: usize = 16;

    #[must_use]
    pub fn new(result: u64, sqhd: u16, sqid: u16, cid: u16, status: Status) -> Self {
        Self {
            result: result.into(),
            sqhd: sqhd.into(),
            sqid: sqid.into(),
            cid: cid.into(),
            status_field: status.to_field().into(),
        }
    }

    /// The completion a response capsule begins with; `None` if it is too short to hold one.
    #[must_use]
    pub fn from_capsule(capsule: &[u8]) -> Option<Self> {
        Self::read_from_prefix(capsule).ok().map(|(completion, _)| completion)
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        zerocopy::transmute!(self)
    }

    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status_field.get())
    }

    /// DW0 alone, which is all most commands answer with.
    #[must_use]
    pub fn dw0(&self) -> u32 {
        super::bits::bits(self.result.get(), 31, 0) as u32
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "response cid {:#06x} sqid {} sqhd {}: {}", self.cid, self.sqid, self.sqhd, self.status())?;
        if self.result.get() != 0 {
            write!(f, ", result {:#x}", self.result)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(bytes: [u8; 16]) -> Completion {
        Completion::from_capsule(&bytes).unwrap()
    }

    #[test]
    fn connect_answers_its_controller() {
        let completion = field([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(completion, Completion::new(1, 1, 0, 0, Status::SUCCESS));
        assert_eq!(completion.dw0(), 1);
    }

    #[test]
    fn an_unknown_subsystem_is_an_invalid_parameter() {
        let bytes = [0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0x83];
        assert_eq!(
            Completion::new(0x0001_0100, 1, 0, 0, Status::CONNECT_INVALID_PARAMETERS).to_bytes(),
            bytes
        );
        assert!(field(bytes).status().dnr());
    }

    #[test]
    fn lba_out_of_range_names_its_command() {
        let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 0, 5, 0x10, 0, 0x81];
        let completion = Completion::new(0, 5, 1, 0x1005, Status::LBA_OUT_OF_RANGE);
        assert_eq!(completion.to_bytes(), bytes);
        assert_eq!(
            completion.to_string(),
            "response cid 0x1005 sqid 1 sqhd 5: LBA Out of Range (do not retry)"
        );
    }

    #[test]
    fn a_short_capsule_holds_no_completion() {
        assert_eq!(Completion::from_capsule(&[0; 15]), None);
    }
}
