//! Identify: what the controller and its namespaces are (NVM Express base specification 2.2, section
//! 5.1.13).
use ironside_common::nvme::admin::{Cns, Identify};
use ironside_common::nvme::copy::SourceRanges;
use ironside_common::nvme::feature::{EventMask, WriteProtection};
use ironside_common::nvme::identify::{
    Anacap, Cmic, CommandSetController, CommandSetNamespace, Controller as ControllerData, ControllerType,
    Descriptor, DescriptorWriter, IndependentNamespace, LbaFormat, Lpa, Namespace as NamespaceData, Oncs,
    Sgls, command_sets, write_active_namespaces,
};
use ironside_common::nvme::io::Geometry;
use ironside_common::nvme::{ALL_NAMESPACES, Command, Status, reservation, text};
use zerocopy::{FromZeros, IntoBytes};

use super::async_event::REQUESTS_MAX;
use super::error_log;
use super::keep_alive::GRANULARITY;
use super::{Controller, Outcome, Reply, VERSION};
use crate::catalog::{ANA_GROUP_MAX, NSID_MAX, Namespace, Subsystem};
use crate::qpair::FUSED_MAX;

const MODEL: &str = "Ironside";
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// CTRATT: a host identifier of 128 bits; every command counts as a keep alive (TBKAS); reservations are for hosts which
/// have an identifier (RHII).
const CONTROLLER_ATTRIBUTES: u32 = 1 << 0 | 1 << 6 | 1 << 18;

/// VWC: a volatile write cache is present; Flush of all namespaces at once is not supported. Present even if
/// no medium has one now, for one may be added to a connected host: namespaces without say so (CNS 08).
const VOLATILE_WRITE_CACHE: u8 = 0b101;

/// FUSES: Compare and Write.
const FUSED_COMPARE_AND_WRITE: u16 = 1 << 0;

/// ANATT: how long a group may be in change, in seconds. Linux gives a controller up whose group is for longer.
const ANA_TRANSITION_S: u8 = 10;

/// The largest logical block, in which limits common to all namespaces are counted.
const BLOCK_MAX: u32 = 4096;

/// Smallest and best transfer: file systems and devices work in pages, and merge what is larger.
const PREFERRED_BYTES: u32 = 4096;
const OPTIMAL_BYTES: u32 = 128 << 10;

impl Controller {
    pub(super) fn identify(&self, command: &Command, out: &mut [u8]) -> Result<Outcome, Status> {
        let identify = Identify::parse(command);
        out.fill(0);
        if self.is_discovery() && identify.cns != Cns::CONTROLLER {
            return Err(Status::INVALID_FIELD);
        }
        match identify.cns {
            Cns::CONTROLLER => put(out, &self.identify_controller()?),
            Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
                if let Some(namespace) = self.allocatable(identify.nsid)? {
                    put(out, &self.identify_namespace(namespace)?);
                }
            }
            Cns::INDEPENDENT_NAMESPACE => {
                if let Some(namespace) = self.allocatable(identify.nsid)? {
                    put(out, &self.identify_independent(namespace)?);
                }
            }
            // Whatever namespace there is for a host is attached to its controllers.
            Cns::ACTIVE_NAMESPACES | Cns::ALLOCATED_NAMESPACES => {
                self.active_namespaces(identify.nsid, out)?;
            }
            Cns::NAMESPACE_DESCRIPTORS => self.descriptors(identify.nsid, out)?,
            Cns::COMMAND_SETS => command_sets(out),
            Cns::CONTROLLERS => return Ok(Outcome::ListControllers { nsid: None, first: identify.cntid }),
            Cns::CONTROLLERS_OF_NAMESPACE if identify.nsid == ALL_NAMESPACES => {
                return Err(Status::INVALID_FIELD);
            }
            Cns::CONTROLLERS_OF_NAMESPACE => {
                self.allocatable(identify.nsid)?.ok_or(Status::INVALID_NAMESPACE)?;
                return Ok(Outcome::ListControllers { nsid: Some(identify.nsid), first: identify.cntid });
            }
            // Of the NVM command set there is something to say, of others nothing.
            _ if identify.csi != 0 => return Err(Status::INVALID_FIELD),
            Cns::COMMAND_SET_ACTIVE_NAMESPACES | Cns::COMMAND_SET_ALLOCATED_NAMESPACES => {
                self.active_namespaces(identify.nsid, out)?;
            }
            Cns::COMMAND_SET_NAMESPACE | Cns::COMMAND_SET_ALLOCATED_NAMESPACE => {
                self.allocatable(identify.nsid)?;
                put(out, &CommandSetNamespace::new_zeroed());
            }
            Cns::COMMAND_SET_CONTROLLER => {
                put(out, &CommandSetController { vsl: self.mdts(), ..CommandSetController::new_zeroed() });
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(Reply::data(out).into())
    }

    fn identify_controller(&self) -> Result<ControllerData, Status> {
        let common = ControllerData {
            model: text::padded(MODEL),
            firmware: text::padded(FIRMWARE),
            cntlid: self.admission.cntlid.into(),
            version: VERSION.0.into(),
            ctratt: CONTROLLER_ATTRIBUTES.into(),
            acl: 3,
            aerl: REQUESTS_MAX - 1,
            lpa: Lpa::EFFECTS | Lpa::EXTENDED | Lpa::SUPPORTED_PAGES,
            elpe: error_log::ENTRIES - 1,
            kas_100ms: granularity_100ms().into(),
            sqes: 0x66,
            cqes: 0x44,
            maxcmd: self.admission.queue_depth.into(),
            subnqn: self.subnqn.to_field(),
            sgls: (Sgls::SUPPORTED | Sgls::KEYED | Sgls::OFFSET).into(),
            ioccsz_16b: ((64 + self.admission.in_capsule) / 16).into(),
            iorcsz_16b: 1.into(),
            msdbd: 1,
            ..ControllerData::new_zeroed()
        };
        if self.is_discovery() {
            return Ok(ControllerData {
                serial: text::padded(MODEL),
                controller_type: ControllerType::DISCOVERY.0,
                oaes: EventMask::DISCOVERY.0.into(),
                ..common
            });
        }
        let subsystem = self.subsystem()?;
        let mut oncs = Oncs::COMPARE
            | Oncs::DATASET_MANAGEMENT
            | Oncs::WRITE_ZEROES
            | Oncs::VERIFY
            | Oncs::COPY
            | Oncs::TIMESTAMP;
        let (mut fused, mut protection) = (None, 0);
        if !subsystem.is_shared() {
            oncs |= Oncs::RESERVATIONS;
            protection = WriteProtection::CAPABILITIES;
            fused = Some(u16::try_from(FUSED_MAX / BLOCK_MAX - 1).expect("a few blocks"));
        }
        Ok(ControllerData {
            serial: text::padded(subsystem.serial()),
            controller_type: ControllerType::IO.0,
            rab: 6,
            cmic: Cmic::MULTI_PORT | Cmic::MULTI_CONTROLLER | Cmic::ANA,
            mdts: self.mdts(),
            oaes: (EventMask::NAMESPACE_ATTRIBUTES.0 | EventMask::ANA.0).into(),
            anatt_s: ANA_TRANSITION_S,
            anacap: Anacap::ALL_STATES,
            anagrpmax: ANA_GROUP_MAX.into(),
            nanagrpid: ANA_GROUP_MAX.into(),
            // One firmware slot, which is read-only.
            frmw: 0b11,
            nn: NSID_MAX.into(),
            mnan: NSID_MAX.into(),
            oncs: oncs.into(),
            // Copy descriptor format 0h.
            ocfs: 1.into(),
            fuses: fused.map_or(0, |_| FUSED_COMPARE_AND_WRITE).into(),
            vwc: VOLATILE_WRITE_CACHE,
            nwpc: protection,
            acwu: fused.unwrap_or_default().into(),
            ..common
        })
    }

    /// The namespace of a number a namespace may have; nothing if it has none now, or none for this host.
    fn allocatable(&self, nsid: u32) -> Result<Option<&Namespace>, Status> {
        if !(1..=NSID_MAX).contains(&nsid) {
            return Err(Status::INVALID_NAMESPACE);
        }
        self.namespace(nsid)
    }

    fn identify_namespace(&self, namespace: &Namespace) -> Result<NamespaceData, Status> {
        let subsystem = self.subsystem()?;
        let state = subsystem.ana_state(namespace.ana_group, self.admission.local);
        let data = identify_namespace(
            namespace,
            state.refusal().is_none(),
            reservations_of(subsystem),
            self.admission.transfer_max,
        );
        Ok(NamespaceData { nsattr: self.is_protected(namespace).into(), ..data })
    }

    fn identify_independent(&self, namespace: &Namespace) -> Result<IndependentNamespace, Status> {
        let cached = namespace.medium.volatile_cache();
        Ok(IndependentNamespace {
            nsfeat: if cached { 0 } else { IndependentNamespace::NO_VOLATILE_WRITE_CACHE },
            nmic: NamespaceData::SHARED,
            rescap: reservations_of(self.subsystem()?),
            anagrpid: namespace.ana_group.into(),
            nsattr: self.is_protected(namespace).into(),
            nstat: IndependentNamespace::READY,
            ..IndependentNamespace::new_zeroed()
        })
    }

    /// NSATTR: whether it takes no writes, for whatever reason.
    fn is_protected(&self, namespace: &Namespace) -> bool {
        namespace.read_only || self.protected.contains(&namespace.uuid)
    }

    fn active_namespaces(&self, after: u32, out: &mut [u8]) -> Result<(), Status> {
        if after >= ALL_NAMESPACES - 1 {
            return Err(Status::INVALID_NAMESPACE);
        }
        let nsids = self.subsystem()?.namespaces_for(&self.host_nqn).map(|namespace| namespace.nsid);
        write_active_namespaces(out, after, nsids);
        Ok(())
    }

    fn descriptors(&self, nsid: u32, out: &mut [u8]) -> Result<(), Status> {
        let namespace = self.allocatable(nsid)?.ok_or(Status::INVALID_NAMESPACE)?;
        let mut writer = DescriptorWriter::new(out);
        writer.push(&Descriptor::Uuid(namespace.uuid));
        if !namespace.nguid.is_nil() {
            writer.push(&Descriptor::Nguid(namespace.nguid));
        }
        writer.push(&Descriptor::CommandSet(0));
        Ok(())
    }
}

/// As a controller shows it whose host came by a way to it, or by none.
fn identify_namespace(
    namespace: &Namespace,
    is_way: bool,
    reservations: u8,
    transfer_max: u32,
) -> NamespaceData {
    let zero_based = |bytes: u32| u16::try_from((bytes >> namespace.block_shift) - 1).unwrap_or(u16::MAX);
    let preferred = zero_based(PREFERRED_BYTES).into();
    let (block_shift, blocks) = (namespace.block_shift, namespace.blocks);
    let copy_blocks = Geometry { block_shift, blocks, transfer_max }.copy_blocks();
    let mut data = NamespaceData {
        nsze: namespace.blocks.into(),
        ncap: namespace.blocks.into(),
        nuse: if is_way { namespace.blocks } else { 0 }.into(),
        nsfeat: NamespaceData::OPTIMAL_IO,
        nmic: NamespaceData::SHARED,
        rescap: reservations,
        dlfeat: NamespaceData::DEALLOCATED_READS_ZERO,
        nvmcap: (u128::from(namespace.blocks) << namespace.block_shift).to_le_bytes(),
        npwg: preferred,
        npwa: preferred,
        npdg: preferred,
        npda: preferred,
        nows: zero_based(OPTIMAL_BYTES).into(),
        anagrpid: namespace.ana_group.into(),
        mssrl: u16::try_from(copy_blocks).unwrap_or(u16::MAX).into(),
        mcl: copy_blocks.into(),
        msrc: u8::try_from(SourceRanges::MAX - 1).expect("0's based, in eight bits"),
        nguid: namespace.nguid.into_bytes(),
        ..NamespaceData::new_zeroed()
    };
    data.formats[0] =
        LbaFormat { metadata_size: 0.into(), block_shift: namespace.block_shift, relative_performance: 0 };
    data
}

/// RESCAP: none where another target would not know of them.
fn reservations_of(subsystem: &Subsystem) -> u8 {
    if subsystem.is_shared() { 0 } else { reservation::CAPABILITIES }
}

/// KAS in its own unit.
fn granularity_100ms() -> u16 {
    u16::try_from(GRANULARITY.as_millis() / 100).expect("the granularity is short")
}

/// `out` has room for every Identify structure, or for as much as the command's data pointer said.
fn put(out: &mut [u8], data: &(impl IntoBytes + zerocopy::Immutable)) {
    out.iter_mut().zip(data.as_bytes()).for_each(|(to, from)| *to = *from);
}
