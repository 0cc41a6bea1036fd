//! The status of a command: type, code, and whether to try again (NVM Express base specification 2.2, section 4.2.3).
use std::fmt;

use super::bits::{bit, bits, place};

/// Which table a status code is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StatusType {
    Generic,
    CommandSpecific,
    Media,
    Path,
    /// 4 to 6 are reserved, 7 is the vendor's.
    Other(u8),
}

impl StatusType {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Generic,
            1 => Self::CommandSpecific,
            2 => Self::Media,
            3 => Self::Path,
            other => Self::Other(other),
        }
    }
}

/// A status as a response carries it. The constants carry Do Not Retry where the same command, tried again,
/// would fail again. Compare with [`Status::is`]: two peers need not agree about Do Not Retry.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Status {
    status_type: u8,
    code: u8,
    retry_delay: u8,
    more: bool,
    dnr: bool,
}

impl Status {
    pub const SUCCESS: Self = Self::retry(0, 0x00);
    pub const INVALID_OPCODE: Self = Self::fatal(0, 0x01);
    pub const INVALID_FIELD: Self = Self::fatal(0, 0x02);
    pub const CID_CONFLICT: Self = Self::fatal(0, 0x03);
    pub const DATA_TRANSFER_ERROR: Self = Self::retry(0, 0x04);
    pub const INTERNAL: Self = Self::retry(0, 0x06);
    pub const ABORT_REQUESTED: Self = Self::retry(0, 0x07);
    pub const ABORTED_SQ_DELETION: Self = Self::retry(0, 0x08);
    pub const ABORTED_FAILED_FUSED: Self = Self::retry(0, 0x09);
    pub const ABORTED_MISSING_FUSED: Self = Self::fatal(0, 0x0A);
    pub const INVALID_NAMESPACE: Self = Self::fatal(0, 0x0B);
    pub const COMMAND_SEQUENCE: Self = Self::fatal(0, 0x0C);
    pub const INVALID_SGL_SEGMENT: Self = Self::fatal(0, 0x0D);
    pub const INVALID_SGL_COUNT: Self = Self::fatal(0, 0x0E);
    pub const DATA_SGL_LENGTH_INVALID: Self = Self::fatal(0, 0x0F);
    pub const SGL_TYPE_INVALID: Self = Self::fatal(0, 0x11);
    pub const ATOMIC_WRITE_UNIT_EXCEEDED: Self = Self::fatal(0, 0x14);
    pub const OPERATION_DENIED: Self = Self::fatal(0, 0x15);
    pub const SGL_OFFSET_INVALID: Self = Self::fatal(0, 0x16);
    pub const HOST_ID_INCONSISTENT: Self = Self::fatal(0, 0x18);
    pub const KEEP_ALIVE_EXPIRED: Self = Self::retry(0, 0x19);
    pub const ABORTED_PREEMPT: Self = Self::retry(0, 0x1B);
    pub const NAMESPACE_WRITE_PROTECTED: Self = Self::fatal(0, 0x20);
    pub const INTERRUPTED: Self = Self::retry(0, 0x21);
    pub const TRANSIENT_TRANSPORT: Self = Self::retry(0, 0x22);
    pub const HOST_ID_NOT_INITIALIZED: Self = Self::fatal(0, 0x27);
    pub const LBA_OUT_OF_RANGE: Self = Self::fatal(0, 0x80);
    pub const CAPACITY_EXCEEDED: Self = Self::fatal(0, 0x81);
    pub const NAMESPACE_NOT_READY: Self = Self::retry(0, 0x82);
    pub const RESERVATION_CONFLICT: Self = Self::fatal(0, 0x83);

    pub const ABORT_LIMIT_EXCEEDED: Self = Self::fatal(1, 0x03);
    pub const ASYNC_EVENT_LIMIT_EXCEEDED: Self = Self::fatal(1, 0x05);
    pub const INVALID_LOG_PAGE: Self = Self::fatal(1, 0x09);
    pub const FEATURE_NOT_SAVEABLE: Self = Self::fatal(1, 0x0D);
    pub const FEATURE_NOT_CHANGEABLE: Self = Self::fatal(1, 0x0E);
    pub const FEATURE_NOT_NAMESPACE_SPECIFIC: Self = Self::fatal(1, 0x0F);
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Self = Self::fatal(1, 0x83);
    pub const CONNECT_INCOMPATIBLE_FORMAT: Self = Self::fatal(1, 0x80);
    pub const CONNECT_CONTROLLER_BUSY: Self = Self::fatal(1, 0x81);
    pub const CONNECT_INVALID_PARAMETERS: Self = Self::fatal(1, 0x82);
    pub const CONNECT_INVALID_HOST: Self = Self::fatal(1, 0x84);
    pub const AUTHENTICATION_REQUIRED: Self = Self::fatal(1, 0x91);

    pub const WRITE_FAULT: Self = Self::retry(2, 0x80);
    pub const UNRECOVERED_READ: Self = Self::retry(2, 0x81);
    pub const COMPARE_FAILURE: Self = Self::fatal(2, 0x85);
    pub const ACCESS_DENIED: Self = Self::fatal(2, 0x86);
    pub const DEALLOCATED_BLOCK: Self = Self::retry(2, 0x87);

    pub const INTERNAL_PATH_ERROR: Self = Self::retry(3, 0x00);
    pub const ANA_PERSISTENT_LOSS: Self = Self::retry(3, 0x01);
    pub const ANA_INACCESSIBLE: Self = Self::retry(3, 0x02);
    pub const ANA_TRANSITION: Self = Self::retry(3, 0x03);
    pub const HOST_PATH_ERROR: Self = Self::retry(3, 0x70);
    pub const ABORTED_BY_HOST: Self = Self::retry(3, 0x71);

    /// From the 16-bit field of a completion. The phase (bit 0) is not part of it.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        let field = field as u64;
        Self {
            status_type: bits(field, 11, 9) as u8,
            code: bits(field, 8, 1) as u8,
            retry_delay: bits(field, 13, 12) as u8,
            more: bit(field, 14),
            dnr: bit(field, 15),
        }
    }

    /// The 16-bit field of a completion, its phase zero.
    #[must_use]
    pub const fn to_field(self) -> u16 {
        (place(self.code as u64, 8, 1)
            | place(self.status_type as u64, 11, 9)
            | place(self.retry_delay as u64, 13, 12)
            | place(self.more as u64, 14, 14)
            | place(self.dnr as u64, 15, 15)) as u16
    }

    #[must_use]
    pub const fn status_type(self) -> StatusType {
        StatusType::from_number(self.status_type)
    }

    #[must_use]
    pub const fn code(self) -> u8 {
        self.code
    }

    /// Do Not Retry: the same command would fail again.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.dnr
    }

    /// There is more about it in the error information log.
    #[must_use]
    pub const fn more(self) -> bool {
        self.more
    }

    /// Which of the controller's retry delays applies; 0 for none.
    #[must_use]
    pub const fn retry_delay(self) -> u8 {
        self.retry_delay
    }

    #[must_use]
    pub const fn is_success(self) -> bool {
        self.status_type == 0 && self.code == 0
    }

    /// Same type and code, whatever either says about retrying.
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        self.status_type == other.status_type && self.code == other.code
    }

    #[must_use]
    pub const fn with_dnr(self, dnr: bool) -> Self {
        Self { dnr, ..self }
    }

    #[must_use]
    pub const fn with_more(self, more: bool) -> Self {
        Self { more, ..self }
    }

    const fn retry(status_type: u8, code: u8) -> Self {
        Self { status_type, code, retry_delay: 0, more: false, dnr: false }
    }

    const fn fatal(status_type: u8, code: u8) -> Self {
        Self { dnr: true, ..Self::retry(status_type, code) }
    }

    const fn words(self) -> Option<&'static str> {
        match self.status_type {
            0 => generic(self.code),
            1 => command_specific(self.code),
            2 => media(self.code),
            3 => path(self.code),
            _ => None,
        }
    }
}

impl std::error::Error for Status {}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => f.write_str(words)?,
            None => write!(f, "status type {} code {:#04x}", self.status_type, self.code)?,
        }
        if self.dnr {
            f.write_str(" (do not retry)")?;
        }
        if self.retry_delay != 0 {
            write!(f, " (retry delay {})", self.retry_delay)?;
        }
        if self.more {
            f.write_str(" (more in the error log)")?;
        }
        Ok(())
    }
}

const fn generic(code: u8) -> Option<&'static str> {
    Some(match code {
        0x00 => "Success",
        0x01 => "Invalid Opcode",
        0x02 => "Invalid Field",
        0x03 => "Command ID Conflict",
        0x04 => "Data Transfer Error",
        0x05 => "Aborted due to Power Loss",
        0x06 => "Internal Error",
        0x07 => "Abort Requested",
        0x08 => "Aborted due to SQ Deletion",
        0x09 => "Aborted due to Failed Fused Command",
        0x0A => "Aborted due to Missing Fused Command",
        0x0B => "Invalid Namespace or Format",
        0x0C => "Command Sequence Error",
        0x0D => "Invalid SGL Segment Descriptor",
        0x0E => "Invalid Number of SGL Descriptors",
        0x0F => "Data SGL Length Invalid",
        0x10 => "Metadata SGL Length Invalid",
        0x11 => "SGL Descriptor Type Invalid",
        0x12 => "Invalid Use of Controller Memory Buffer",
        0x13 => "PRP Offset Invalid",
        0x14 => "Atomic Write Unit Exceeded",
        0x15 => "Operation Denied",
        0x16 => "SGL Offset Invalid",
        0x18 => "Host Identifier Inconsistent",
        0x19 => "Keep Alive Timer Expired",
        0x1A => "Keep Alive Timeout Invalid",
        0x1B => "Aborted due to Preempt and Abort",
        0x1C => "Sanitize Failed",
        0x1D => "Sanitize in Progress",
        0x1E => "SGL Data Block Granularity Invalid",
        0x20 => "Namespace is Write Protected",
        0x21 => "Command Interrupted",
        0x22 => "Transient Transport Error",
        0x24 => "Admin Command Media Not Ready",
        0x27 => "Host Identifier Not Initialized",
        0x80 => "LBA Out of Range",
        0x81 => "Capacity Exceeded",
        0x82 => "Namespace Not Ready",
        0x83 => "Reservation Conflict",
        0x84 => "Format in Progress",
        _ => return None,
    })
}

const fn command_specific(code: u8) -> Option<&'static str> {
    Some(match code {
        0x00 => "Completion Queue Invalid",
        0x01 => "Invalid Queue Identifier",
        0x02 => "Invalid Queue Size",
        0x03 => "Abort Command Limit Exceeded",
        0x05 => "Asynchronous Event Request Limit Exceeded",
        0x06 => "Invalid Firmware Slot",
        0x07 => "Invalid Firmware Image",
        0x09 => "Invalid Log Page",
        0x0A => "Invalid Format",
        0x0D => "Feature Identifier Not Saveable",
        0x0E => "Feature Not Changeable",
        0x0F => "Feature Not Namespace Specific",
        0x14 => "Overlapping Range",
        0x18 => "Namespace Already Attached",
        0x1A => "Namespace Not Attached",
        0x24 => "ANA Group Identifier Invalid",
        0x29 => "I/O Command Set Not Supported",
        0x2A => "I/O Command Set Not Enabled",
        0x2B => "I/O Command Set Combination Rejected",
        0x2C => "Invalid I/O Command Set",
        0x80 => "Connect Incompatible Format or Conflicting Attributes",
        0x81 => "Connect Controller Busy or Invalid Protection Information",
        0x82 => "Connect Invalid Parameters or Attempted Write to Read Only Range",
        0x83 => "Connect Restart Discovery or Command Size Limit Exceeded",
        0x84 => "Connect Invalid Host",
        0x90 => "Discovery Restart",
        0x91 => "Authentication Required",
        _ => return None,
    })
}

const fn media(code: u8) -> Option<&'static str> {
    Some(match code {
        0x80 => "Write Fault",
        0x81 => "Unrecovered Read Error",
        0x82 => "End-to-end Guard Check Error",
        0x83 => "End-to-end Application Tag Check Error",
        0x84 => "End-to-end Reference Tag Check Error",
        0x85 => "Compare Failure",
        0x86 => "Access Denied",
        0x87 => "Deallocated or Unwritten Logical Block",
        _ => return None,
    })
}

const fn path(code: u8) -> Option<&'static str> {
    Some(match code {
        0x00 => "Internal Path Error",
        0x01 => "Asymmetric Access Persistent Loss",
        0x02 => "Asymmetric Access Inaccessible",
        0x03 => "Asymmetric Access Transition",
        0x60 => "Controller Pathing Error",
        0x70 => "Host Pathing Error",
        0x71 => "Command Aborted By Host",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives_but_the_phase() {
        for field in 0..=u16::MAX {
            assert_eq!(Status::from_field(field).to_field(), field & !1);
        }
    }

    #[test]
    fn constants_are_where_the_specification_has_them() {
        assert_eq!(Status::LBA_OUT_OF_RANGE.to_field(), 0x8100);
        assert_eq!(Status::RESERVATION_CONFLICT.to_field(), 0x8106);
        assert_eq!(Status::CONNECT_INVALID_PARAMETERS.to_field(), 0x8304);
        assert_eq!(Status::COMPARE_FAILURE.to_field() & 0x7FFF, 0x285 << 1);
        assert_eq!(Status::ANA_INACCESSIBLE.status_type(), StatusType::Path);
    }

    #[test]
    fn words_say_type_code_and_retry() {
        assert_eq!(Status::from_field(0xF << 9).to_string(), "status type 7 code 0x00 (retry delay 1)");
        assert_eq!(
            Status::INVALID_FIELD.with_more(true).to_string(),
            "Invalid Field (do not retry) (more in the error log)"
        );
        assert!(Status::INVALID_FIELD.with_dnr(false).is(Status::INVALID_FIELD));
        assert!(Status::from_field(1).is_success());
    }
}
