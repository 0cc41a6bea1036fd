//! Reservations: the commands by which hosts agree who may use a namespace they share, and the report of what they
//! agreed (NVM Express base specification 2.2, sections 7.5 to 7.8 and 8.1.22).
use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bits::{bit, bits, place};
use super::{Command, IoOpcode, Status, Transfer};

/// RTYPE: what a reservation keeps others from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    WriteExclusive = 1,
    ExclusiveAccess = 2,
    WriteExclusiveRegistrantsOnly = 3,
    ExclusiveAccessRegistrantsOnly = 4,
    WriteExclusiveAllRegistrants = 5,
    ExclusiveAccessAllRegistrants = 6,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The type of this number, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether it keeps others from reading, too.
    #[must_use]
    pub const fn excludes_reads(self) -> bool {
        self.number().is_multiple_of(2)
    }

    /// Whether every registrant may do what the holder may.
    #[must_use]
    pub const fn includes_registrants(self) -> bool {
        self.number() > 2
    }

    /// Whether every registrant is a holder.
    #[must_use]
    pub const fn is_held_by_all(self) -> bool {
        self.number() > 4
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteExclusive => "Write Exclusive",
            Self::ExclusiveAccess => "Exclusive Access",
            Self::WriteExclusiveRegistrantsOnly => "Write Exclusive - Registrants Only",
            Self::ExclusiveAccessRegistrantsOnly => "Exclusive Access - Registrants Only",
            Self::WriteExclusiveAllRegistrants => "Write Exclusive - All Registrants",
            Self::ExclusiveAccessAllRegistrants => "Exclusive Access - All Registrants",
        })
    }
}

/// RREGA: what a Reservation Register does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegisterAction {
    Register = 0,
    Unregister = 1,
    Replace = 2,
}

/// RACQA: what a Reservation Acquire does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AcquireAction {
    Acquire = 0,
    Preempt = 1,
    PreemptAndAbort = 2,
}

/// A reservation command that is well-formed. The keys come as data: see [`Keys`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    Register {
        action: RegisterAction,
        /// IEKEY.
        ignore_key: bool,
        /// CPTPL: from now on reservations outlast a loss of power, or do not.
        persist: Option<bool>,
    },
    Acquire {
        action: AcquireAction,
        kind: Kind,
    },
    Release {
        /// The type it gives up, which may be none there is.
        kind: Option<Kind>,
    },
    Clear,
    Report {
        /// Bytes of the report which the host takes.
        length: u32,
        /// EDS: host identifiers of 16 bytes.
        extended: bool,
    },
}

impl Request {
    /// Reads a command of which `transfer_max` bytes may move. Nothing if it is no reservation command.
    ///
    /// # Errors
    /// Invalid Field, for an action or a type that there is not.
    #[must_use]
    pub fn parse(command: &Command, transfer_max: u32) -> Option<Result<Self, Status>> {
        let cdw10 = u64::from(command.cdw10);
        Some(match IoOpcode(command.opcode) {
            IoOpcode::RESERVATION_REGISTER => Self::register(cdw10),
            IoOpcode::RESERVATION_ACQUIRE => Self::acquire(cdw10),
            IoOpcode::RESERVATION_RELEASE => Self::release(cdw10),
            IoOpcode::RESERVATION_REPORT => {
                let length = (cdw10 + 1) * 4;
                let within = u32::try_from(length).ok().filter(|&length| length <= transfer_max);
                let extended = bit(command.cdw11.into(), 0);
                within.map(|length| Self::Report { length, extended }).ok_or(Status::INVALID_FIELD)
            }
            _ => return None,
        })
    }

    fn register(cdw10: u64) -> Result<Self, Status> {
        let action = match bits(cdw10, 2, 0) {
            0 => RegisterAction::Register,
            1 => RegisterAction::Unregister,
            2 => RegisterAction::Replace,
            _ => return Err(Status::INVALID_FIELD),
        };
        let persist = match bits(cdw10, 31, 30) {
            0 => None,
            2 => Some(false),
            3 => Some(true),
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Self::Register { action, ignore_key: bit(cdw10, 3), persist })
    }

    fn acquire(cdw10: u64) -> Result<Self, Status> {
        let action = match bits(cdw10, 2, 0) {
            0 => AcquireAction::Acquire,
            1 => AcquireAction::Preempt,
            2 => AcquireAction::PreemptAndAbort,
            _ => return Err(Status::INVALID_FIELD),
        };
        let kind = Kind::from_number(bits(cdw10, 15, 8) as u8).filter(|_| !bit(cdw10, 3));
        Ok(Self::Acquire { action, kind: kind.ok_or(Status::INVALID_FIELD)? })
    }

    fn release(cdw10: u64) -> Result<Self, Status> {
        match (bit(cdw10, 3), bits(cdw10, 2, 0)) {
            (false, 0) => Ok(Self::Release { kind: Kind::from_number(bits(cdw10, 15, 8) as u8) }),
            (false, 1) => Ok(Self::Clear),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// What has to move.
    #[must_use]
    pub const fn transfer(&self) -> Transfer {
        match *self {
            Self::Register { .. } | Self::Acquire { .. } => Transfer::FromHostAtLeast(Keys::SIZE),
            Self::Release { .. } | Self::Clear => Transfer::FromHostAtLeast(Keys::SIZE / 2),
            Self::Report { length, .. } => Transfer::ToHost(length),
        }
    }

    /// The command which asks for this, its data pointer still to be set.
    #[must_use]
    pub fn to_command(&self, cid: u16, nsid: u32) -> Command {
        let (opcode, cdw10, cdw11) = match *self {
            Self::Register { action, ignore_key, persist } => {
                let persist = persist.map_or(0, |persist| 2 | u64::from(persist));
                let cdw10 = action as u64 | place(ignore_key.into(), 3, 3) | place(persist, 31, 30);
                (IoOpcode::RESERVATION_REGISTER, cdw10, 0)
            }
            Self::Acquire { action, kind } => {
                let cdw10 = action as u64 | place(kind.number().into(), 15, 8);
                (IoOpcode::RESERVATION_ACQUIRE, cdw10, 0)
            }
            Self::Release { kind } => {
                let cdw10 = place(kind.map_or(0, Kind::number).into(), 15, 8);
                (IoOpcode::RESERVATION_RELEASE, cdw10, 0)
            }
            Self::Clear => (IoOpcode::RESERVATION_RELEASE, 1, 0),
            Self::Report { length, extended } => {
                (IoOpcode::RESERVATION_REPORT, (u64::from(length) / 4).saturating_sub(1), extended.into())
            }
        };
        Command {
            cdw10: (bits(cdw10, 31, 0) as u32).into(),
            cdw11: cdw11.into(),
            ..Command::new(opcode.0, cid, nsid)
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Register { action, ignore_key, persist } => {
                write!(f, "{action:?}")?;
                f.write_str(if ignore_key { ", whatever the key is" } else { "" })?;
                f.write_str(match persist {
                    None => "",
                    Some(true) => ", to outlast a loss of power",
                    Some(false) => ", until a loss of power",
                })
            }
            Self::Acquire { action: AcquireAction::PreemptAndAbort, kind } => {
                write!(f, "Preempt and Abort, {kind}")
            }
            Self::Acquire { action, kind } => write!(f, "{action:?}, {kind}"),
            Self::Release { kind: Some(kind) } => write!(f, "Release, {kind}"),
            Self::Release { kind: None } => f.write_str("Release, of no type"),
            Self::Clear => f.write_str("Clear"),
            Self::Report { length, extended } => {
                write!(f, "Report of {length} bytes{}", if extended { ", extended" } else { "" })
            }
        }
    }
}

/// What a reservation command brings, as it is on the wire; a Release brings the first half.
#[derive(
    Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Keys {
    /// CRKEY.
    pub current: U64,
    /// NRKEY of a Register: the key to have. PRKEY of an Acquire: whose registration is to go.
    pub other: U64,
}

impl Keys {
    /// In bytes.
    pub const SIZE: u32 = 16;

    #[must_use]
    pub fn new(current: u64, other: u64) -> Self {
        Self { current: current.into(), other: other.into() }
    }
}

const _: () = assert!(size_of::<Keys>() == Keys::SIZE as usize);

/// Head of an extended report as it is on the wire; its registrants follow.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct ReportHeader {
    /// GEN: changes of registrations so far, as far as it counts.
    pub generation: U32,
    /// RTYPE, 0 for no reservation.
    pub kind: u8,
    /// REGSTRNT.
    pub registrants: U16,
    pub reserved_7: [u8; 2],
    /// PTPLS.
    pub persists: u8,
    pub reserved_10: [u8; 54],
}

/// One registrant of an extended report as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct ReportEntry {
    pub cntlid: U16,
    /// RCSTS, bit 0: it holds the reservation.
    pub status: u8,
    pub reserved_3: [u8; 5],
    pub key: U64,
    pub host_id: [u8; 16],
    pub reserved_32: [u8; 32],
}

const _: () = {
    assert!(size_of::<ReportHeader>() == ReportHeader::SIZE as usize);
    assert!(std::mem::offset_of!(ReportHeader, persists) == 9);
    assert!(size_of::<ReportEntry>() == ReportEntry::SIZE as usize);
    assert!(std::mem::offset_of!(ReportEntry, host_id) == 16);
};

impl ReportHeader {
    /// In bytes.
    pub const SIZE: u32 = 64;
}

impl ReportEntry {
    /// In bytes.
    pub const SIZE: u32 = 64;
}

/// What a namespace can do (RESCAP): all types, keys which may be ignored, and reservations that outlast a loss of
/// power.
pub const CAPABILITIES: u8 = 0xFF;

/// What happened to a host's rights, as the Reservation Notification log says it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Notification {
    RegistrationPreempted = 1,
    ReservationReleased = 2,
    ReservationPreempted = 3,
}

impl Notification {
    /// Its bit in the Reservation Notification Mask.
    #[must_use]
    pub const fn mask(self) -> u32 {
        1 << self as u32
    }

    /// Every bit the mask has.
    pub const MASK: u32 = 0b1110;
}

/// The Reservation Notification log (page 80h) as it is on the wire: one notification. All zero if there is none.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct NotificationLog {
    /// Which notification of this controller it is, from 1.
    pub count: U64,
    pub kind: u8,
    /// How many more there are.
    pub available: u8,
    pub reserved_10: [u8; 2],
    pub nsid: U32,
    pub reserved_16: [u8; 48],
}

const _: () = assert!(size_of::<NotificationLog>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(request: Request) -> Option<Result<Request, Status>> {
        Request::parse(&request.to_command(7, 1), 1 << 20)
    }

    #[test]
    fn every_request_survives_its_command() {
        use AcquireAction::{Acquire, Preempt, PreemptAndAbort};
        use RegisterAction::{Register, Replace, Unregister};
        for action in [Register, Unregister, Replace] {
            for persist in [None, Some(false), Some(true)] {
                for ignore_key in [false, true] {
                    let request = Request::Register { action, ignore_key, persist };
                    assert_eq!(parse(request), Some(Ok(request)));
                }
            }
        }
        for kind in Kind::ALL {
            for action in [Acquire, Preempt, PreemptAndAbort] {
                let request = Request::Acquire { action, kind };
                assert_eq!(parse(request), Some(Ok(request)));
            }
            let request = Request::Release { kind: Some(kind) };
            assert_eq!(parse(request), Some(Ok(request)));
        }
        for request in [Request::Clear, Request::Report { length: 4096, extended: true }] {
            assert_eq!(parse(request), Some(Ok(request)));
        }
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let register =
            Request::Register { action: RegisterAction::Replace, ignore_key: true, persist: Some(true) };
        assert_eq!(register.to_command(0, 1).cdw10.get(), 0xC000_000A);
        let acquire = Request::Acquire {
            action: AcquireAction::PreemptAndAbort,
            kind: Kind::ExclusiveAccessAllRegistrants,
        };
        assert_eq!(acquire.to_command(0, 1).cdw10.get(), 0x0602);
        let report = Request::Report { length: 64, extended: true }.to_command(0, 1);
        assert_eq!((report.opcode, report.cdw10.get(), report.cdw11.get()), (0x0E, 15, 1));
    }

    #[test]
    fn what_there_is_not_is_refused() {
        let with = |opcode: IoOpcode, cdw10: u32| {
            let command = Command { cdw10: cdw10.into(), ..Command::new(opcode.0, 0, 1) };
            Request::parse(&command, 1 << 20)
        };
        let refused = Some(Err(Status::INVALID_FIELD));
        for cdw10 in [3, 7, 1 << 30] {
            assert_eq!(with(IoOpcode::RESERVATION_REGISTER, cdw10), refused, "{cdw10:#x}");
        }
        for cdw10 in [0x103, 0x000, 0x700, 0x108] {
            assert_eq!(with(IoOpcode::RESERVATION_ACQUIRE, cdw10), refused, "{cdw10:#x}");
        }
        assert_eq!(with(IoOpcode::RESERVATION_RELEASE, 2), refused);
        assert_eq!(with(IoOpcode::RESERVATION_RELEASE, 0x108), refused);
        assert_eq!(with(IoOpcode::RESERVATION_REPORT, u32::MAX), refused);
        assert_eq!(with(IoOpcode::RESERVATION_REPORT, 1 << 18), refused, "beyond the transfer limit");
        assert_eq!(with(IoOpcode::READ, 0), None);
        assert_eq!(
            with(IoOpcode::RESERVATION_RELEASE, 0x700),
            Some(Ok(Request::Release { kind: None })),
            "a type that nobody holds"
        );
    }
}
