//! Connect: who may have a controller, and which queues may join one (NVM Express base specification 2.2, section 6.3).
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use ironside_common::nvme::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, InvalidParameter};
use ironside_common::nvme::{Nqn, Status};
use ironside_common::time::Time;
use ironside_common::verbs::Address;

use super::Controller;
use super::async_event::AsyncEvents;
use super::error_log::ErrorLog;
use super::keep_alive::KeepAlive;
use super::properties::Registers;
use super::reservation_log::ReservationLog;
use super::timestamp::Timestamp;
use crate::catalog::Catalog;
use crate::qpair::Counts;

/// What a new controller gets from the reactor which admits it.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Its identifier, which no other controller of this target has.
    pub cntlid: u16,
    /// The address of ours the connection came to.
    pub local: Address,
    /// Most entries of a queue, a count.
    pub queue_depth: u16,
    /// Bytes of data a command capsule may carry.
    pub in_capsule: u32,
    /// Bytes one command moves at most.
    pub transfer_max: u32,
    pub io_queues_max: u16,
}

/// The answer to a Connect which is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    pub status: Status,
    pub result: u64,
}

impl Refusal {
    /// A field of the command, by its offset in bytes, is wrong.
    #[must_use]
    pub fn parameter_in_command(offset: u16) -> Self {
        InvalidParameter { in_data: false, offset }.into()
    }

    /// A field of the data, by its offset in bytes, is wrong.
    #[must_use]
    pub fn parameter_in_data(offset: u16) -> Self {
        InvalidParameter { in_data: true, offset }.into()
    }
}

impl From<InvalidParameter> for Refusal {
    fn from(parameter: InvalidParameter) -> Self {
        Self { result: parameter.to_result(), ..Status::CONNECT_INVALID_PARAMETERS.into() }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)?;
        if self.result != 0 {
            write!(f, ": {}", InvalidParameter::from_result(self.result))?;
        }
        Ok(())
    }
}

impl Controller {
    /// A new controller for the host of this Connect, which came on an admin queue.
    ///
    /// # Errors
    /// What to answer instead.
    ///
    /// # Panics
    /// If the admission allows no queue entries.
    pub fn connect(
        now: Time,
        catalog: &Arc<Catalog>,
        admission: &Admission,
        connect: &Connect,
        data: &ConnectData,
    ) -> Result<Self, Refusal> {
        check_format(connect)?;
        if connect.qid != 0 {
            return Err(InvalidParameter::QID.into());
        }
        if data.cntlid.get() != CNTLID_DYNAMIC {
            return Err(InvalidParameter::CNTLID.into());
        }
        let host_nqn = Nqn::from_field(&data.hostnqn).map_err(|_| InvalidParameter::HOSTNQN)?;
        let subnqn = find(catalog, admission.local, data, &host_nqn)?;
        let is_discovery = subnqn.is_discovery();
        let io_queues = if is_discovery { 0 } else { admission.io_queues_max };
        Ok(Self {
            catalog: Arc::clone(catalog),
            subnqn,
            admission: *admission,
            host_nqn,
            host_id: data.host_id,
            created: now,
            timestamp: Timestamp::new(now),
            registers: Registers::new(admission.queue_depth, !is_discovery),
            keep_alive: KeepAlive::new(now, connect.kato_ms, is_discovery),
            notices: AsyncEvents::default(),
            errors: ErrorLog::default(),
            changed: BTreeSet::new(),
            access_changes: 0,
            reservations: ReservationLog::default(),
            protected: BTreeSet::new(),
            queues: (0..=io_queues).map(|qid| qid == 0).collect(),
            queues_granted: io_queues,
            events: VecDeque::new(),
            counts: Counts::default(),
        })
    }

    /// An I/O queue, on whichever reactor, wants to belong to this controller.
    ///
    /// # Errors
    /// What to answer instead.
    pub fn join_queue(&mut self, now: Time, connect: &Connect, data: &ConnectData) -> Result<(), Refusal> {
        check_format(connect)?;
        if connect.sqsize >= self.admission.queue_depth {
            return Err(InvalidParameter::SQSIZE.into());
        }
        if !self.is_named_by(data) {
            return Err(InvalidParameter::CNTLID.into());
        }
        if !self.registers.is_ready() || !(1..=self.queues_granted).contains(&connect.qid) {
            return Err(InvalidParameter::QID.into());
        }
        let joined = self.queues.get_mut(usize::from(connect.qid)).ok_or(InvalidParameter::QID)?;
        if std::mem::replace(joined, true) {
            return Err(Status::COMMAND_SEQUENCE.into());
        }
        self.keep_alive.note_activity(now);
        Ok(())
    }

    /// An I/O queue which had joined is gone.
    pub fn queue_left(&mut self, qid: u16) {
        if let Some(joined) = self.queues.get_mut(usize::from(qid)).filter(|_| qid != 0) {
            *joined = false;
        }
    }

    pub(super) fn has_io_queues(&self) -> bool {
        self.queues.iter().skip(1).any(|&joined| joined)
    }

    /// Whether host and subsystem are those the controller was made for. An I/O queue need not repeat the
    /// host identifier (NVM Express base specification 2.2, figure 547).
    fn is_named_by(&self, data: &ConnectData) -> bool {
        data.cntlid.get() == self.admission.cntlid
            && Nqn::from_field(&data.subnqn) == Ok(self.subnqn)
            && Nqn::from_field(&data.hostnqn) == Ok(self.host_nqn)
            && (data.host_id == self.host_id || data.host_id == [0; 16])
    }
}

/// What is wrong with a Connect whoever it is for. Whether the size fits what the connection can receive is
/// known where the receives are.
fn check_format(connect: &Connect) -> Result<(), Refusal> {
    if connect.record_format != 0 {
        return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.into());
    }
    if connect.sqsize == 0 {
        return Err(InvalidParameter::SQSIZE.into());
    }
    Ok(())
}

/// The subsystem a Connect names, if its host may have it where it came in.
fn find(catalog: &Catalog, local: Address, data: &ConnectData, host: &Nqn) -> Result<Nqn, Refusal> {
    let nqn = Nqn::from_field(&data.subnqn).map_err(|_| InvalidParameter::SUBNQN)?;
    if nqn.is_discovery() {
        return Ok(nqn);
    }
    let subsystem = catalog.subsystem(&nqn).filter(|subsystem| subsystem.is_reached_at(local));
    match subsystem {
        None => Err(InvalidParameter::SUBNQN.into()),
        // Two of one name could be taken for each other where they prove who they are.
        Some(subsystem) if subsystem.allows(host) && (*host != nqn || subsystem.key(host).is_none()) => {
            Ok(nqn)
        }
        Some(_) => Err(Refusal {
            status: Status::CONNECT_INVALID_HOST,
            result: InvalidParameter::HOSTNQN.to_result(),
        }),
    }
}
