//! Set Features and Get Features (protocol section D.1).
use ironside_common::nvme::admin::{GetFeatures, SetFeatures};
use ironside_common::nvme::feature::{
    EventMask, FeatureId, QueueCounts, Select, wants_extended_host_identifier,
};
use ironside_common::nvme::{Command, Status};

use super::{Controller, Reply};

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
const OF_IO_CONTROLLERS: [FeatureId; 3] =
    [FeatureId::NUMBER_OF_QUEUES, FeatureId::VOLATILE_WRITE_CACHE, FeatureId::HOST_IDENTIFIER];

impl Controller {
    /// Those it has.
    pub(super) fn features(&self) -> impl Iterator<Item = FeatureId> + use<> {
        let more =
            OF_IO_CONTROLLERS.into_iter().chain(FIXED).take(if self.is_discovery() { 0 } else { usize::MAX });
        [FeatureId::ASYNC_EVENT_CONFIGURATION, FeatureId::KEEP_ALIVE_TIMER].into_iter().chain(more)
    }

    pub(super) fn set_features(&mut self, command: &Command, _data: &[u8]) -> Result<Reply, Status> {
        let set = SetFeatures::parse(command);
        if set.save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        match set.feature {
            FeatureId::ASYNC_EVENT_CONFIGURATION => self.notices.set_wanted(EventMask(set.value)),
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.set_timeout_ms(set.value),
            _ if self.is_discovery() => return Err(Status::INVALID_FIELD),
            FeatureId::NUMBER_OF_QUEUES => {
                self.set_number_of_queues(set.value)?;
                return Ok(Reply::result(self.number_of_queues().into()));
            }
            FeatureId::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE),
            FeatureId::VOLATILE_WRITE_CACHE if set.value == WRITE_CACHE_ENABLED => {}
            FeatureId::VOLATILE_WRITE_CACHE => return Err(Status::FEATURE_NOT_CHANGEABLE),
            feature if is_fixed(feature) => return Err(Status::FEATURE_NOT_CHANGEABLE),
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(Reply::result(0))
    }

    pub(super) fn get_features(&self, command: &Command, out: &mut [u8]) -> Result<Reply, Status> {
        let get = GetFeatures::parse(command);
        // Identify does not offer the other values (ONCS bit 4).
        if get.select != Select::CURRENT {
            return Err(Status::INVALID_FIELD);
        }
        let value = match get.feature {
            FeatureId::ASYNC_EVENT_CONFIGURATION => self.notices.wanted().0,
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.timeout_ms(),
            _ if self.is_discovery() => return Err(Status::INVALID_FIELD),
            FeatureId::NUMBER_OF_QUEUES => self.number_of_queues(),
            FeatureId::VOLATILE_WRITE_CACHE => WRITE_CACHE_ENABLED,
            FeatureId::HOST_IDENTIFIER if wants_extended_host_identifier(get.value) => {
                out.iter_mut().zip(self.host_id).for_each(|(to, from)| *to = from);
                return Ok(Reply::data(out));
            }
            feature if is_fixed(feature) => 0,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Reply::result(value.into()))
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
