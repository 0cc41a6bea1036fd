//! Finding the namespaces of a controller: the sequence of Identify commands, as a machine which says what to
//! send next and is told the answers. It runs when a connection is made, and again when the controller says
//! that its namespaces have changed.
use ironside_common::nvme::admin::{Cns, GetLogPage, Identify};
use ironside_common::nvme::log_page::{AnaHeader, AnaState, LogPageId, ana_groups};
use ironside_common::nvme::property::Version;
use ironside_common::nvme::reservation::NotificationLog;
use ironside_common::nvme::{ALL_NAMESPACES, Command, identify};
use zerocopy::FromBytes;

use super::controller::Controller;
use super::namespace::{ControllerLimits, IDENTIFY_LENGTH, Namespace, NamespaceError};
use super::queue::Refusal;

/// Namespaces a host looks at; further ones are left alone.
pub(super) const NAMESPACES_MAX: usize = 1024;
/// Bytes of the log page of changed namespaces, which is read whole.
const CHANGED_LENGTH: u32 = 4096;

/// Bytes of the access log, which are read of its groups without their namespaces: 127 of them.
const ACCESS_LENGTH: u32 = 4096;

/// Bytes of the log page of reservation notifications, which has one of them.
const NOTIFICATION_LENGTH: u32 = 64;

/// A command for the admin queue which reads `length` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub command: Command,
    pub length: u32,
}

/// What a controller may not say.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ScanError {
    #[error("the namespace list is not in ascending order: {next:#x} after {last:#x}")]
    Unordered { last: u32, next: u32 },
    #[error("the namespace list cannot be read: {0}")]
    List(Refusal),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// The log page which, once read, lets the controller tell of further changes.
    ChangedList,
    /// The log page of the states of groups.
    Access,
    /// The oldest notification of the log of reservations.
    Notification,
    /// Limits of the NVM command set.
    CommandSet,
    List {
        after: u32,
    },
    Namespace,
    Descriptors,
    Independent,
    Done,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Scan {
    step: Step,
    version: Version,
    page_shift: u8,
    limits: ControllerLimits,
    /// Active namespaces not looked at yet, the next one last.
    pending: Vec<u32>,
    listed: usize,
    found: Vec<Namespace>,
    /// Namespaces passed over, and why.
    skipped: Vec<(u32, NamespaceError)>,
    reports_access: bool,
    /// Nothing but one log page is wanted.
    only_log: bool,
    /// The states of groups, once they are known.
    access: Option<Vec<(u32, AnaState)>>,
    notification: Option<Box<NotificationLog>>,
}

/// What a scan came to.
#[derive(Debug)]
pub(super) struct Found {
    /// Usable namespaces in ascending order, unless they were not looked for.
    pub namespaces: Option<Vec<Namespace>>,
    pub skipped: Vec<(u32, NamespaceError)>,
    /// The states of groups, if the controller says them.
    pub access: Option<Vec<(u32, AnaState)>>,
    /// The oldest notification of the log of reservations, if it was asked for and there is one.
    pub notification: Option<Box<NotificationLog>>,
}

impl Scan {
    /// The first look at a controller.
    pub(super) fn new(version: Version, page_shift: u8, controller: &Controller) -> Self {
        let reports_access = controller.reports_access;
        Self {
            step: if reports_access { Step::Access } else { Step::CommandSet },
            version,
            page_shift,
            limits: controller.limits,
            pending: Vec::new(),
            listed: 0,
            found: Vec::new(),
            skipped: Vec::new(),
            reports_access,
            only_log: false,
            access: None,
            notification: None,
        }
    }

    /// Another, since the controller has announced a change.
    pub(super) fn again(version: Version, page_shift: u8, controller: &Controller) -> Self {
        Self { step: Step::ChangedList, ..Self::new(version, page_shift, controller) }
    }

    /// A look at the states of groups alone.
    pub(super) fn of_access(controller: &Controller) -> Self {
        Self { step: Step::Access, only_log: true, ..Self::new(Version(0), 0, controller) }
    }

    /// A look at the log of reservations alone, which takes the notification from it.
    pub(super) fn of_notification(controller: &Controller) -> Self {
        Self { step: Step::Notification, ..Self::of_access(controller) }
    }

    /// What to send next; nothing once all is known.
    pub(super) fn query(&self) -> Option<Query> {
        let identify = |cns, nsid| {
            let command = Identify::new(cns, nsid).to_command(0);
            Some(Query { command, length: identify::SIZE })
        };
        match self.step {
            Step::ChangedList => {
                let length = CHANGED_LENGTH;
                let log = GetLogPage::new(LogPageId::CHANGED_NAMESPACES, ALL_NAMESPACES, length);
                Some(Query { command: log.to_command(0), length })
            }
            Step::Access => {
                let length = ACCESS_LENGTH;
                let whole = GetLogPage::new(LogPageId::ANA, ALL_NAMESPACES, length);
                let log = GetLogPage { specific: AnaHeader::GROUPS_ONLY, ..whole };
                Some(Query { command: log.to_command(0), length })
            }
            Step::Notification => {
                let length = NOTIFICATION_LENGTH;
                let log = GetLogPage::new(LogPageId::RESERVATION_NOTIFICATION, 0, length);
                Some(Query { command: log.to_command(0), length })
            }
            Step::CommandSet => identify(Cns::COMMAND_SET_CONTROLLER, 0),
            Step::List { after } => identify(Cns::ACTIVE_NAMESPACES, after),
            Step::Namespace => identify(Cns::NAMESPACE, self.current()),
            Step::Descriptors => identify(Cns::NAMESPACE_DESCRIPTORS, self.current()),
            Step::Independent => identify(Cns::INDEPENDENT_NAMESPACE, self.current()),
            Step::Done => None,
        }
    }

    /// The answer to the last query.
    ///
    /// # Errors
    /// If the list of namespaces cannot be had. What is wrong with one namespace only costs that one.
    pub(super) fn answered(
        &mut self,
        result: Result<(), Refusal>,
        data: &[u8; IDENTIFY_LENGTH],
    ) -> Result<(), ScanError> {
        match self.step {
            Step::ChangedList => {
                self.step = if self.reports_access { Step::Access } else { Step::CommandSet };
            }
            Step::Access => {
                self.access = result.is_ok().then(|| ana_groups(data).collect());
                self.step = if self.only_log { Step::Done } else { Step::CommandSet };
            }
            Step::Notification => {
                let read = NotificationLog::read_from_prefix(data).ok().map(|(log, _)| Box::new(log));
                self.notification = read.filter(|log| result.is_ok() && log.kind != 0);
                self.step = Step::Done;
            }
            Step::CommandSet => {
                if result.is_ok() {
                    self.learn_limits(data);
                }
                self.step = Step::List { after: 0 };
            }
            Step::List { after } => {
                result.map_err(ScanError::List)?;
                self.listed(after, data)?;
            }
            Step::Namespace => {
                let parsed = Namespace::parse(self.current(), data, &self.limits);
                match result.map_err(|_| NamespaceError::Inactive).and(parsed) {
                    Ok(namespace) => self.found.push(namespace),
                    Err(error) => return self.skip(error),
                }
                self.step = Step::Descriptors;
            }
            Step::Descriptors => {
                if result.is_ok() {
                    self.learn_identity(data);
                }
                self.step = Step::Independent;
                if self.version.0 < Version::new(2, 0, 0).0 {
                    self.next_namespace();
                }
            }
            Step::Independent => {
                if result.is_ok() {
                    return self.learn_independent(data);
                }
                self.next_namespace();
            }
            Step::Done => {}
        }
        Ok(())
    }

    /// What was found.
    pub(super) fn into_found(self) -> Found {
        let namespaces = (!self.only_log).then_some(self.found);
        Found { namespaces, skipped: self.skipped, access: self.access, notification: self.notification }
    }

    fn current(&self) -> u32 {
        *self.pending.last().expect("a step of a namespace has one")
    }

    fn listed(&mut self, after: u32, data: &[u8; IDENTIFY_LENGTH]) -> Result<(), ScanError> {
        let list = identify::active_namespaces(data);
        let mut last = after;
        for nsid in list.iter() {
            if nsid <= last {
                return Err(ScanError::Unordered { last, next: nsid });
            }
            last = nsid;
            if self.listed < NAMESPACES_MAX && nsid < ALL_NAMESPACES - 1 {
                self.listed += 1;
                self.pending.push(nsid);
            }
        }
        if let (Some(after), true) = (list.next_from(), self.listed < NAMESPACES_MAX) {
            self.step = Step::List { after };
            return Ok(());
        }
        self.pending.reverse();
        self.step = if self.pending.is_empty() { Step::Done } else { Step::Namespace };
        Ok(())
    }

    /// WZSL and DMRSL, where the controller states them.
    fn learn_limits(&mut self, data: &[u8; IDENTIFY_LENGTH]) {
        let wire: &identify::CommandSetController = zerocopy::transmute_ref!(data);
        let shift = u32::from(wire.wzsl) + u32::from(self.page_shift);
        self.limits.write_zeroes_max = (wire.wzsl != 0 && shift < 64).then(|| 1 << shift);
        self.limits.discard_blocks_max = Some(wire.dmrsl.get()).filter(|&blocks| blocks != 0);
    }

    fn learn_identity(&mut self, data: &[u8; IDENTIFY_LENGTH]) {
        let identity = &mut self.found.last_mut().expect("pushed the step before").identity;
        for descriptor in identify::descriptors(data) {
            match descriptor {
                identify::Descriptor::Uuid(uuid) => identity.uuid = Some(uuid),
                identify::Descriptor::Nguid(nguid) => identity.nguid = Some(nguid),
                identify::Descriptor::Eui64(eui64) => identity.eui64 = Some(eui64),
                _ => {}
            }
        }
    }

    fn learn_independent(&mut self, data: &[u8; IDENTIFY_LENGTH]) -> Result<(), ScanError> {
        let wire: &identify::IndependentNamespace = zerocopy::transmute_ref!(data);
        if wire.nstat & identify::IndependentNamespace::READY == 0 {
            self.found.pop();
            return self.skip(NamespaceError::NotReady);
        }
        let geometry = &mut self.found.last_mut().expect("pushed two steps before").geometry;
        geometry.read_only |= wire.nsattr & 1 != 0;
        geometry.volatile_cache &= wire.nsfeat & identify::IndependentNamespace::NO_VOLATILE_WRITE_CACHE == 0;
        self.next_namespace();
        Ok(())
    }

    fn skip(&mut self, error: NamespaceError) -> Result<(), ScanError> {
        self.skipped.push((self.current(), error));
        self.next_namespace();
        Ok(())
    }

    fn next_namespace(&mut self) {
        self.pending.pop();
        self.step = if self.pending.is_empty() { Step::Done } else { Step::Namespace };
    }
}
