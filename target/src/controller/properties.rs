//! The properties, and the handshakes a host does with them: enable, disable, shut down (protocol B.3).
use ironside_common::nvme::Status;
use ironside_common::nvme::bits::bits;
use ironside_common::nvme::fabrics::{PropertyGet, PropertySet};
use ironside_common::nvme::property::{Capabilities, Configuration, ControllerStatus, PropertyId, Shutdown};

use super::VERSION;

/// CAP.TO and CRTO.CRWMT: how long a host waits for ready, although it never has to.
const READY_TIMEOUT_500MS: u8 = 15;

/// CC.CSS values a host may choose: the NVM command set, or all there are, which is the same.
const COMMAND_SETS: [u8; 2] = [0b000, 0b110];

#[derive(Debug)]
pub(super) struct Registers {
    capabilities: Capabilities,
    /// Discovery controllers have no I/O queues, and their hosts no need to say how large entries are.
    has_io_queues: bool,
    configuration: Configuration,
    ready: bool,
    fatal: bool,
    shut_down: bool,
}

/// What a write meant for the rest of the controller.
#[must_use]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    None,
    Enabled,
    /// Disabled or shut down.
    Disabled,
}

impl Registers {
    pub(super) const fn new(queue_depth: u16, has_io_queues: bool) -> Self {
        Self {
            capabilities: Capabilities::new(queue_depth as u32, READY_TIMEOUT_500MS),
            has_io_queues,
            configuration: Configuration(0),
            ready: false,
            fatal: false,
            shut_down: false,
        }
    }

    pub(super) const fn is_ready(&self) -> bool {
        self.ready
    }

    /// The controller is beyond repair.
    pub(super) const fn fail(&mut self) {
        self.ready = false;
        self.fatal = true;
    }

    pub(super) fn get(&self, get: &PropertyGet) -> Result<u64, Status> {
        if !get.is_of_right_size() {
            return Err(Status::INVALID_FIELD);
        }
        match get.property {
            PropertyId::CAP => Ok(self.capabilities.0),
            PropertyId::VS => Ok(VERSION.0.into()),
            PropertyId::CC => Ok(self.configuration.0.into()),
            // CRWMT; without CRIMS there is no CRIMT.
            PropertyId::CRTO => Ok(READY_TIMEOUT_500MS.into()),
            PropertyId::CSTS => Ok(ControllerStatus::new(self.ready, self.fatal, self.shut_down).0.into()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    pub(super) fn set(&mut self, set: &PropertySet) -> Result<Change, Status> {
        if set.property != PropertyId::CC || set.size != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let new = Configuration(bits(set.value, 31, 0) as u32);
        let old = std::mem::replace(&mut self.configuration, new);
        let mut change = Change::None;
        match (old.enabled(), new.enabled()) {
            (false, true) => change = self.enable(),
            (true, false) => change = self.disable(),
            _ => {}
        }
        match (old.shutdown(), new.shutdown()) {
            (Shutdown::None, Shutdown::None) => {}
            (Shutdown::None, _) => {
                change = self.disable();
                self.shut_down = true;
            }
            (_, Shutdown::None) => self.shut_down = false,
            _ => {}
        }
        Ok(change)
    }

    fn enable(&mut self) -> Change {
        let configuration = self.configuration;
        let entries = (configuration.sq_entry_shift(), configuration.cq_entry_shift());
        let acceptable = (!self.has_io_queues || entries == (6, 4))
            && configuration.page_size() == 0
            && configuration.arbitration() == 0
            && COMMAND_SETS.contains(&configuration.command_set());
        if !acceptable {
            self.fatal = true;
            return Change::None;
        }
        self.ready = true;
        Change::Enabled
    }

    fn disable(&mut self) -> Change {
        self.ready = false;
        self.fatal = false;
        Change::Disabled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configure(registers: &mut Registers, value: u32) -> (Change, u64) {
        let change = registers.set(&PropertySet::new(PropertyId::CC, value.into())).unwrap();
        (change, registers.get(&PropertyGet::new(PropertyId::CSTS)).unwrap())
    }

    #[test]
    fn old_and_new_hosts_enable_and_shut_down() {
        for values in [&[0x0046_0001u32][..], &[0x0046_0060, 0x0046_0061], &[0x0046_0000, 0x0046_0001]] {
            let mut registers = Registers::new(128, true);
            for &value in &values[..values.len() - 1] {
                assert_eq!(configure(&mut registers, value), (Change::None, 0));
            }
            let last = values[values.len() - 1];
            assert_eq!(configure(&mut registers, last), (Change::Enabled, 1));
            assert_eq!(configure(&mut registers, last | 0x4000), (Change::Disabled, 8));
            assert_eq!(configure(&mut registers, last & !1), (Change::Disabled, 0));
            assert_eq!(configure(&mut registers, last), (Change::Enabled, 1));
        }
    }

    #[test]
    fn what_cannot_be_configured_is_fatal_until_disabled() {
        for value in [0x0045_0001, 0x0036_0001, 0x0046_0081, 0x0046_0801, 0x0046_0071] {
            let mut registers = Registers::new(128, true);
            assert_eq!(configure(&mut registers, value), (Change::None, 2), "{value:#x}");
            assert!(!registers.is_ready());
            assert_eq!(configure(&mut registers, 0), (Change::Disabled, 0));
            assert_eq!(configure(&mut registers, 0x0046_0001), (Change::Enabled, 1));
        }
        assert_eq!(configure(&mut Registers::new(32, false), 1), (Change::Enabled, 1));
    }

    #[test]
    fn properties_have_their_size_and_place() {
        let mut registers = Registers::new(128, true);
        let get = |property, size| registers.get(&PropertyGet { property, size });
        assert_eq!(get(PropertyId::CAP, 1), Ok(0x0800_0020_0F01_007F));
        assert_eq!(get(PropertyId::CAP, 0), Err(Status::INVALID_FIELD));
        assert_eq!(get(PropertyId::VS, 0), Ok(0x0002_0000));
        assert_eq!(get(PropertyId::VS, 1), Err(Status::INVALID_FIELD));
        assert_eq!(get(PropertyId::CC, 2), Err(Status::INVALID_FIELD));
        assert_eq!(get(PropertyId::CRTO, 0), Ok(15));
        assert_eq!(get(PropertyId(0x24), 0), Err(Status::INVALID_FIELD));
        for property in [PropertyId::CAP, PropertyId::VS, PropertyId::CSTS, PropertyId::NSSR] {
            assert_eq!(registers.set(&PropertySet::new(property, 0)), Err(Status::INVALID_FIELD));
        }
    }
}
