//! What an Asynchronous Event Request is answered with (NVM Express base specification 2.2, section 5.1.2).
use std::fmt;

use super::bits::{bits, place};
use super::log_page::LogPageId;

/// DW0 of the answer: what happened, and which log page says more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AsyncEvent {
    /// 0 an error, 1 health, 2 a notice, 6 of an I/O command set.
    pub event_type: u8,
    pub information: u8,
    pub log_page: LogPageId,
}

impl AsyncEvent {
    pub const NAMESPACE_ATTRIBUTES_CHANGED: Self = Self::notice(0x00, LogPageId::CHANGED_NAMESPACES);
    pub const ANA_CHANGED: Self = Self::notice(0x03, LogPageId::ANA);
    pub const DISCOVERY_CHANGED: Self = Self::notice(0xF0, LogPageId::DISCOVERY);

    pub const RESERVATION_NOTIFICATION: Self =
        Self { event_type: 6, information: 0, log_page: LogPageId::RESERVATION_NOTIFICATION };

    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let dword = dword as u64;
        Self {
            event_type: bits(dword, 2, 0) as u8,
            information: bits(dword, 15, 8) as u8,
            log_page: LogPageId(bits(dword, 23, 16) as u8),
        }
    }

    #[must_use]
    pub const fn to_dword(self) -> u32 {
        (place(self.event_type as u64, 2, 0)
            | place(self.information as u64, 15, 8)
            | place(self.log_page.0 as u64, 23, 16)) as u32
    }

    const fn notice(information: u8, log_page: LogPageId) -> Self {
        Self { event_type: 2, information, log_page }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NAMESPACE_ATTRIBUTES_CHANGED => "namespace attributes changed",
            Self::ANA_CHANGED => "asymmetric namespace access changed",
            Self::DISCOVERY_CHANGED => "discovery log page changed",
            Self::RESERVATION_NOTIFICATION => "reservation notification available",
            Self { event_type, information, log_page } => {
                return write!(f, "event type {event_type} information {information:#04x}, see {log_page}");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_dwords_of_the_specification() {
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED.to_dword(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGED.to_dword(), 0x000C_0302);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_dword(), 0x0070_F002);
        assert_eq!(AsyncEvent::RESERVATION_NOTIFICATION.to_dword(), 0x0080_0006);
        assert_eq!(AsyncEvent::from_dword(0x0070_F002), AsyncEvent::DISCOVERY_CHANGED);
        assert_eq!(
            AsyncEvent::from_dword(0x0001_0300).to_string(),
            "event type 0 information 0x03, see Error Information"
        );
    }
}
