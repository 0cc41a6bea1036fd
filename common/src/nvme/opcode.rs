//! The numbers of commands. Each is a value by itself, so that an unknown one is no special case.
use std::fmt;

/// The opcode of every Fabrics command, on any queue.
pub const FABRICS_OPCODE: u8 = 0x7F;

/// Opcode of a command on the admin queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AdminOpcode(pub u8);

impl AdminOpcode {
    pub const GET_LOG_PAGE: Self = Self(0x02);
    pub const IDENTIFY: Self = Self(0x06);
    pub const ABORT: Self = Self(0x08);
    pub const SET_FEATURES: Self = Self(0x09);
    pub const GET_FEATURES: Self = Self(0x0A);
    pub const ASYNC_EVENT_REQUEST: Self = Self(0x0C);
    pub const KEEP_ALIVE: Self = Self(0x18);
    pub const FABRICS: Self = Self(FABRICS_OPCODE);
}

impl fmt::Display for AdminOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0x00 => "Delete I/O Submission Queue",
            0x01 => "Create I/O Submission Queue",
            0x02 => "Get Log Page",
            0x04 => "Delete I/O Completion Queue",
            0x05 => "Create I/O Completion Queue",
            0x06 => "Identify",
            0x08 => "Abort",
            0x09 => "Set Features",
            0x0A => "Get Features",
            0x0C => "Asynchronous Event Request",
            0x0D => "Namespace Management",
            0x10 => "Firmware Commit",
            0x11 => "Firmware Image Download",
            0x14 => "Device Self-test",
            0x15 => "Namespace Attachment",
            0x18 => "Keep Alive",
            0x19 => "Directive Send",
            0x1A => "Directive Receive",
            0x7F => "Fabrics",
            0x80 => "Format NVM",
            0x81 => "Security Send",
            0x82 => "Security Receive",
            0x84 => "Sanitize",
            other => return write!(f, "admin opcode {other:#04x}"),
        })
    }
}

/// Opcode of a command on an I/O queue, NVM command set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IoOpcode(pub u8);

impl IoOpcode {
    pub const FLUSH: Self = Self(0x00);
    pub const WRITE: Self = Self(0x01);
    pub const READ: Self = Self(0x02);
    pub const COMPARE: Self = Self(0x05);
    pub const WRITE_ZEROES: Self = Self(0x08);
    pub const DATASET_MANAGEMENT: Self = Self(0x09);
    pub const VERIFY: Self = Self(0x0C);
    pub const RESERVATION_REGISTER: Self = Self(0x0D);
    pub const RESERVATION_REPORT: Self = Self(0x0E);
    pub const RESERVATION_ACQUIRE: Self = Self(0x11);
    pub const RESERVATION_RELEASE: Self = Self(0x15);
    pub const COPY: Self = Self(0x19);
    pub const FABRICS: Self = Self(FABRICS_OPCODE);
}

impl fmt::Display for IoOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0x00 => "Flush",
            0x01 => "Write",
            0x02 => "Read",
            0x04 => "Write Uncorrectable",
            0x05 => "Compare",
            0x08 => "Write Zeroes",
            0x09 => "Dataset Management",
            0x0C => "Verify",
            0x0D => "Reservation Register",
            0x0E => "Reservation Report",
            0x11 => "Reservation Acquire",
            0x15 => "Reservation Release",
            0x19 => "Copy",
            0x7F => "Fabrics",
            other => return write!(f, "I/O opcode {other:#04x}"),
        })
    }
}

/// Type of a Fabrics command: byte 4, where other commands have their NSID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FabricsType(pub u8);

impl FabricsType {
    pub const PROPERTY_SET: Self = Self(0x00);
    pub const CONNECT: Self = Self(0x01);
    pub const PROPERTY_GET: Self = Self(0x04);
    pub const AUTHENTICATION_SEND: Self = Self(0x05);
    pub const AUTHENTICATION_RECEIVE: Self = Self(0x06);
    pub const DISCONNECT: Self = Self(0x08);
}

impl fmt::Display for FabricsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0x00 => "Property Set",
            0x01 => "Connect",
            0x04 => "Property Get",
            0x05 => "Authentication Send",
            0x06 => "Authentication Receive",
            0x08 => "Disconnect",
            other => return write!(f, "Fabrics type {other:#04x}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_number_is_named_by_its_number() {
        assert_eq!(AdminOpcode(0xC0).to_string(), "admin opcode 0xc0");
        assert_eq!(IoOpcode(0x03).to_string(), "I/O opcode 0x03");
        assert_eq!(FabricsType(0xC0).to_string(), "Fabrics type 0xc0");
        assert_eq!(IoOpcode::READ.to_string(), "Read");
    }
}
