//! What a controller says of itself, checked: the conditions under which a Linux host would use it, and the
//! limits they leave us.
use ironside_common::nvme::feature::EventMask;
use ironside_common::nvme::identify::{self, Cmic, ControllerType, Oncs, Sgls};
use ironside_common::nvme::property::Capabilities;
use ironside_common::nvme::{Nqn, text};

use super::error::Incompatible;
use super::namespace::{ControllerLimits, IDENTIFY_LENGTH};
use super::options::{HostOptions, Role};
use super::queue::MAX_QUEUE_SIZE;

/// Bytes IOCCSZ and IORCSZ count in.
const CAPSULE_UNIT: u32 = 16;
/// Bytes of a command, which a capsule begins with.
const COMMAND_LENGTH: u32 = 64;
/// More data than this is never put behind a command, whatever the controller would take.
const IN_CAPSULE_MAX: u32 = 1 << 16;

/// The model number of a target whose promises are known to us.
const OUR_MODEL: &str = "Ironside";

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Controller {
    pub is_discovery: bool,
    /// Bytes of data which may travel behind a command on an I/O queue.
    pub in_capsule: u32,
    /// Entries of each I/O queue.
    pub queue_size: u16,
    pub limits: ControllerLimits,
    /// The events to ask for.
    pub events: EventMask,
    /// Whether it says which namespaces it is a way to at the moment (ANA).
    pub reports_access: bool,
    /// Whether it holds the Connect of a host until the writes which have come from that have ended.
    pub ends_writes: bool,
    /// Its Identify structure as it came.
    pub identify: Box<[u8; IDENTIFY_LENGTH]>,
}

impl Controller {
    /// Reads and checks an Identify Controller structure.
    ///
    /// # Errors
    /// Why this controller cannot be used.
    pub fn parse(
        identify: &[u8; IDENTIFY_LENGTH],
        cntlid: u16,
        capabilities: Capabilities,
        options: &HostOptions,
    ) -> Result<Self, Incompatible> {
        let wire: &identify::Controller = zerocopy::transmute_ref!(identify);
        if wire.cntlid.get() != cntlid {
            let identified = wire.cntlid.get();
            return Err(Incompatible::OtherController { connected: cntlid, identified });
        }
        let is_discovery = wire.controller_type() == ControllerType::DISCOVERY || is_discovery_name(wire);
        match options.role {
            Role::Discovery if !is_discovery => return Err(Incompatible::NotDiscovery),
            Role::Io | Role::Command(_) if is_discovery => return Err(Incompatible::Discovery),
            _ => {}
        }
        if wire.sgls.get() & Sgls::KEYED == 0 {
            return Err(Incompatible::KeyedSgl);
        }
        if !is_discovery {
            check_io(wire, options)?;
        }
        let queue_size = queue_size(wire, capabilities, options.queue_size);
        if queue_size < 2 && matches!(options.role, Role::Io | Role::Command(_)) {
            return Err(Incompatible::QueueSize(queue_size.into()));
        }
        Ok(Self {
            is_discovery,
            in_capsule: in_capsule(wire),
            queue_size,
            limits: ControllerLimits {
                max_transfer: max_transfer(wire, capabilities, options.max_transfer),
                volatile_cache: wire.has_volatile_write_cache(),
                write_zeroes: wire.supports(Oncs::WRITE_ZEROES),
                discard: wire.supports(Oncs::DATASET_MANAGEMENT),
                write_zeroes_max: None,
                discard_blocks_max: None,
            },
            events: EventMask(wire.oaes.get())
                .intersection(EventMask(EventMask::NAMESPACE_ATTRIBUTES.0 | EventMask::ANA.0)),
            reports_access: wire.cmic & Cmic::ANA != 0,
            ends_writes: text::read(&wire.model) == OUR_MODEL,
            identify: Box::new(*identify),
        })
    }
}

/// What a discovery controller need not have.
fn check_io(wire: &identify::Controller, options: &HostOptions) -> Result<(), Incompatible> {
    let command_capsule = wire.ioccsz_16b.get().saturating_mul(CAPSULE_UNIT);
    if command_capsule < COMMAND_LENGTH {
        return Err(Incompatible::CommandCapsule(command_capsule));
    }
    let response_capsule = wire.iorcsz_16b.get().saturating_mul(CAPSULE_UNIT);
    if response_capsule < CAPSULE_UNIT {
        return Err(Incompatible::ResponseCapsule(response_capsule));
    }
    let offset = u32::from(wire.icdoff_16b.get()) * CAPSULE_UNIT;
    if offset != 0 {
        return Err(Incompatible::InCapsuleOffset(offset));
    }
    if wire.kas_100ms.get() == 0 && !options.keep_alive_tmo.is_zero() {
        return Err(Incompatible::KeepAlive);
    }
    Ok(())
}

fn in_capsule(wire: &identify::Controller) -> u32 {
    if wire.takes_in_capsule_data() { wire.in_capsule_data().min(IN_CAPSULE_MAX) } else { 0 }
}

/// The smallest of what we want, MQES and MAXCMD, which by some is left zero.
fn queue_size(wire: &identify::Controller, capabilities: Capabilities, wanted: u16) -> u16 {
    let supported = u16::try_from(capabilities.queue_depth()).unwrap_or(u16::MAX);
    let commands = Some(wire.maxcmd.get()).filter(|&commands| commands != 0).unwrap_or(u16::MAX);
    wanted.min(supported).min(commands).min(MAX_QUEUE_SIZE)
}

fn max_transfer(wire: &identify::Controller, capabilities: Capabilities, wanted: u32) -> u32 {
    let limit = wire.transfer_max(capabilities.page_shift_min()).unwrap_or(u64::MAX);
    u32::try_from(limit).unwrap_or(u32::MAX).min(wanted)
}

/// A discovery controller too old to state its type goes by the well-known name.
fn is_discovery_name(wire: &identify::Controller) -> bool {
    Nqn::from_field(&wire.subnqn).is_ok_and(|nqn| nqn.is_discovery())
}
