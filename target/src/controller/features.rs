//! Set Features and Get Features (NVM Express base specification 2.2, sections 5.1.25 and 5.1.11).
use ironside_common::nvme::admin::{GetFeatures, SetFeatures};
use ironside_common::nvme::bits::bit;
use ironside_common::nvme::feature::{
    EventMask, FeatureId, QueueCounts, Select, WriteProtection, wants_extended_host_identifier,
};
use ironside_common::nvme::{ALL_NAMESPACES, Command, Status};
use ironside_common::time::Time;

use super::{Controller, Outcome, Reply};

/// The volatile write cache is enabled, and stays so.
const WRITE_CACHE_ENABLED: u32 = 1;

/// Features every controller has, of which this one has nothing to set.
const FIXED: [FeatureId; 5] = [
    FeatureId::ARBITRATION,
    FeatureId::POWER_MANAGEMENT,
    FeatureId::TEMPERATURE_THRESHOLD,
    FeatureId::ERROR_RECOVERY,
    FeatureId::WRITE_ATOMICITY,
];

/// Those which a discovery controller has not.
const OF_IO_CONTROLLERS: [FeatureId; 7] = [
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::TIMESTAMP,
    FeatureId::HOST_IDENTIFIER,
    FeatureId::RESERVATION_NOTIFICATION_MASK,
    FeatureId::RESERVATION_PERSISTENCE,
    FeatureId::NAMESPACE_WRITE_PROTECTION,
];

/// Those which a subsystem has not that another target serves too: it would not know what was agreed here.
const OF_ONE_TARGET: [FeatureId; 3] = [
    FeatureId::RESERVATION_NOTIFICATION_MASK,
    FeatureId::RESERVATION_PERSISTENCE,
    FeatureId::NAMESPACE_WRITE_PROTECTION,
];

impl Controller {
    /// Those it has.
    pub(super) fn features(&self) -> impl Iterator<Item = FeatureId> + use<> {
        let is_shared = self.is_shared();
        let more = OF_IO_CONTROLLERS.into_iter().chain(FIXED);
        let more = more.filter(move |feature| !is_shared || !OF_ONE_TARGET.contains(feature));
        let more = more.take(if self.is_discovery() { 0 } else { usize::MAX });
        [FeatureId::ASYNC_EVENT_CONFIGURATION, FeatureId::KEEP_ALIVE_TIMER].into_iter().chain(more)
    }

    pub(super) fn set_features(
        &mut self,
        now: Time,
        command: &Command,
        data: &[u8],
    ) -> Result<Outcome, Status> {
        let set = SetFeatures::parse(command);
        if set.save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        match set.feature {
            FeatureId::ASYNC_EVENT_CONFIGURATION => self.notices.set_wanted(EventMask(set.value)),
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.set_timeout_ms(set.value),
            feature if self.lacks(feature) => return Err(Status::INVALID_FIELD),
            FeatureId::NUMBER_OF_QUEUES => {
                self.set_number_of_queues(set.value)?;
                return Ok(Reply::result(self.number_of_queues().into()).into());
            }
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                self.check_namespace(set.nsid, true)?;
                self.reservations.set_mask(set.nsid, set.value)?;
            }
            FeatureId::RESERVATION_PERSISTENCE => {
                self.check_namespace(set.nsid, false)?;
                return Ok(Outcome::SetPersistence { nsid: set.nsid, persist: bit(set.value.into(), 0) });
            }
            FeatureId::NAMESPACE_WRITE_PROTECTION => {
                self.check_namespace(set.nsid, false)?;
                let protect = match WriteProtection::from_dword(set.value).ok_or(Status::INVALID_FIELD)? {
                    WriteProtection::None => false,
                    WriteProtection::Protected => true,
                    _ => return Err(Status::FEATURE_NOT_CHANGEABLE),
                };
                return Ok(Outcome::Protect { nsid: set.nsid, protect });
            }
            FeatureId::TIMESTAMP => {
                let data = data.try_into().map_err(|_| Status::DATA_SGL_LENGTH_INVALID)?;
                self.timestamp.set(now, data);
            }
            FeatureId::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE),
            FeatureId::VOLATILE_WRITE_CACHE if set.value == WRITE_CACHE_ENABLED => {}
            FeatureId::VOLATILE_WRITE_CACHE => return Err(Status::FEATURE_NOT_CHANGEABLE),
            feature if is_fixed(feature) => return Err(Status::FEATURE_NOT_CHANGEABLE),
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(Reply::result(0).into())
    }

    pub(super) fn get_features(
        &self,
        now: Time,
        command: &Command,
        out: &mut [u8],
    ) -> Result<Outcome, Status> {
        let get = GetFeatures::parse(command);
        // Identify does not offer the other values (ONCS bit 4).
        if get.select != Select::CURRENT {
            return Err(Status::INVALID_FIELD);
        }
        let value = match get.feature {
            FeatureId::ASYNC_EVENT_CONFIGURATION => self.notices.wanted().0,
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.timeout_ms(),
            feature if self.lacks(feature) => return Err(Status::INVALID_FIELD),
            FeatureId::NUMBER_OF_QUEUES => self.number_of_queues(),
            FeatureId::VOLATILE_WRITE_CACHE => WRITE_CACHE_ENABLED,
            FeatureId::HOST_IDENTIFIER if wants_extended_host_identifier(get.value) => {
                out.iter_mut().zip(self.host_id).for_each(|(to, from)| *to = from);
                return Ok(Reply::data(out).into());
            }
            FeatureId::TIMESTAMP => {
                out.iter_mut().zip(self.timestamp.read(now)).for_each(|(to, from)| *to = from);
                return Ok(Reply::data(out).into());
            }
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                self.check_namespace(get.nsid, false)?;
                self.reservations.mask(get.nsid)
            }
            FeatureId::RESERVATION_PERSISTENCE => {
                self.check_namespace(get.nsid, false)?;
                return Ok(Outcome::GetPersistence { nsid: get.nsid });
            }
            FeatureId::NAMESPACE_WRITE_PROTECTION => {
                let namespace = self.namespace(get.nsid)?.ok_or(Status::INVALID_NAMESPACE)?;
                let is_protected = self.protected.contains(&namespace.uuid);
                let state = if is_protected { WriteProtection::Protected } else { WriteProtection::None };
                state.to_dword()
            }
            feature if is_fixed(feature) => 0,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Reply::result(value.into()).into())
    }

    fn lacks(&self, feature: FeatureId) -> bool {
        self.is_discovery() || self.is_shared() && OF_ONE_TARGET.contains(&feature)
    }

    /// A feature of a namespace names one there is, or, where it may, all of them.
    fn check_namespace(&self, nsid: u32, all: bool) -> Result<(), Status> {
        let names_all = all && nsid == ALL_NAMESPACES;
        let exists = names_all || self.namespace(nsid)?.is_some();
        exists.then_some(()).ok_or(Status::INVALID_NAMESPACE)
    }

    fn set_number_of_queues(&mut self, value: u32) -> Result<(), Status> {
        if self.has_io_queues() {
            return Err(Status::COMMAND_SEQUENCE);
        }
        let asked = QueueCounts::from_dword(value).ok_or(Status::INVALID_FIELD)?;
        let pairs = asked.submission.min(asked.completion);
        self.queues_granted = u16::try_from(pairs).unwrap_or(u16::MAX).min(self.admission.io_queues_max);
        Ok(())
    }

    fn number_of_queues(&self) -> u32 {
        let count = u32::from(self.queues_granted);
        QueueCounts { submission: count, completion: count }.to_dword()
    }
}

fn is_fixed(feature: FeatureId) -> bool {
    FIXED.contains(&feature)
}
