//! Making an association: from the first connection to the last namespace, one step at a time, as a machine
//! which says what to do next ([`Setup::ask`]) and is told how it went. Every step has a deadline.
use std::sync::Arc;
use std::time::Duration;

use ironside_common::auth::{Job, Keys, Outcome};
use ironside_common::nvme::admin::{Cns, Identify, SetFeatures};
use ironside_common::nvme::bits::{bit, bits};
use ironside_common::nvme::fabrics::{
    CNTLID_DYNAMIC, CNTLID_MAX, Connect, ConnectData, ConnectResponse, PropertyGet, PropertySet,
};
use ironside_common::nvme::feature::{FeatureId, QueueCounts};
use ironside_common::nvme::log_page::AnaState;
use ironside_common::nvme::private_data::{self, Reject};
use ironside_common::nvme::property::{Capabilities, Configuration, ControllerStatus, PropertyId, Version};
use ironside_common::nvme::{Command, QueueKind, identify};
use ironside_common::time::Time;
use ironside_common::verbs::{PrivateData, RejectReason};

use super::authentication::Authentication;
use super::controller::Controller;
use super::discovery::{DiscoveryLog, LogReader, Progress};
use super::error::{ConnectError, Doing, Incompatible};
use super::fault::Fault;
use super::namespace::{IDENTIFY_LENGTH, Namespace, NamespaceError};
use super::options::{ADMIN_QUEUE_SIZE, HostOptions, Role};
use super::passed::{Answer, Passed};
use super::queue::Refusal;
use super::scan::Scan;

/// For the answer to a command. A target holds Connect until the writes of the old connection have drained.
const COMMAND_PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at CSTS.
const READY_INTERVAL: Duration = Duration::from_millis(2);
/// CAP.TO and CRTO.CRWMT count in units of this.
const READY_UNIT: Duration = Duration::from_millis(500);

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Ask {
    /// Connect the queue of this number, of so many entries, with this private data.
    Dial { queue: u16, size: u16, private_data: private_data::Request },
    /// Send a command on the queue of this number.
    Command { queue: u16, command: Command, payload: Payload },
    /// Run what [`Setup::take_job`] gives, and hand its outcome to [`Setup::computed`].
    Compute,
    /// Nothing until [`Setup::deadline`].
    Sleep,
    /// All is done.
    Ready,
}

/// The data that goes with a command.
#[derive(Debug)]
pub(super) enum Payload {
    None,
    /// The controller writes so many bytes.
    In(u32),
    Connect(Box<ConnectData>),
    /// A message, to be read by the controller.
    Out(Vec<u8>),
}

/// What an association turned out to be.
#[derive(Debug)]
pub(super) struct Association {
    pub cntlid: u16,
    pub version: Version,
    pub capabilities: Capabilities,
    pub controller: Controller,
    pub namespaces: Vec<Namespace>,
    pub skipped: Vec<(u32, NamespaceError)>,
    pub access: Vec<(u32, AnaState)>,
    pub discovered: DiscoveryLog,
    pub round_trips: Vec<Duration>,
    pub answer: Answer,
    /// What it authenticated by, if the controller asked for that.
    pub keys: Option<Arc<Keys>>,
}

#[derive(Debug)]
enum Step {
    Dial(u16),
    Connect(u16),
    Authenticate(Box<Authentication>),
    GetCapabilities,
    Configure,
    GetCapabilitiesAgain,
    GetReadyTimeouts,
    Enable,
    GetStatus,
    AwaitReady,
    GetVersion,
    IdentifyController,
    /// The same again.
    Probe,
    NumberOfQueues,
    ConfigureEvents,
    Scan(Scan),
    Log(LogReader),
    Command(Passed),
    Ready,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Setup {
    options: HostOptions,
    step: Step,
    began: Time,
    cntlid: u16,
    capabilities: Capabilities,
    ready_timeout: Duration,
    ready_by: Time,
    version: Version,
    controller: Option<Controller>,
    io_queues: u16,
    io_queue_size: u16,
    namespaces: Vec<Namespace>,
    skipped: Vec<(u32, NamespaceError)>,
    access: Vec<(u32, AnaState)>,
    discovered: DiscoveryLog,
    round_trips: Vec<Duration>,
    answer: Answer,
    authenticates: bool,
}

impl Setup {
    pub(super) fn new(options: HostOptions, now: Time) -> Self {
        Self {
            options,
            step: Step::Dial(0),
            began: now,
            cntlid: CNTLID_DYNAMIC,
            capabilities: Capabilities(0),
            ready_timeout: Duration::ZERO,
            ready_by: now,
            version: Version(0),
            controller: None,
            io_queues: 0,
            io_queue_size: 0,
            namespaces: Vec::new(),
            skipped: Vec::new(),
            access: Vec::new(),
            discovered: DiscoveryLog::default(),
            round_trips: Vec::new(),
            answer: Answer::default(),
            authenticates: false,
        }
    }

    /// What to do next. Asking twice gives the same answer.
    pub(super) fn ask(&self) -> Ask {
        let send = |command, payload| Ask::Command { queue: 0, command, payload };
        let get = |property| send(PropertyGet::new(property).to_command(0), Payload::None);
        let set = |value: Configuration| {
            send(PropertySet::new(PropertyId::CC, value.0.into()).to_command(0), Payload::None)
        };
        match &self.step {
            Step::Dial(queue) => self.dial(*queue),
            Step::Connect(queue) => self.connect(*queue),
            Step::Authenticate(authentication) => authentication.ask(),
            Step::GetCapabilities | Step::GetCapabilitiesAgain => get(PropertyId::CAP),
            Step::Configure => set(configuration(self.capabilities, false)),
            Step::GetReadyTimeouts => get(PropertyId::CRTO),
            Step::Enable => set(configuration(self.capabilities, true)),
            Step::GetStatus => get(PropertyId::CSTS),
            Step::AwaitReady => Ask::Sleep,
            Step::GetVersion => get(PropertyId::VS),
            Step::IdentifyController | Step::Probe => {
                let identify = Identify::new(Cns::CONTROLLER, 0);
                send(identify.to_command(0), Payload::In(identify::SIZE))
            }
            Step::NumberOfQueues => {
                let count = self.options.nr_io_queues.into();
                let wanted = QueueCounts { submission: count, completion: count };
                let set = SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, wanted.to_dword());
                send(set.to_command(0), Payload::None)
            }
            Step::ConfigureEvents => {
                let events = self.controller.as_ref().map_or(0, |controller| controller.events.0);
                let set = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIGURATION, events);
                send(set.to_command(0), Payload::None)
            }
            Step::Scan(scan) => {
                scan.query().map_or(Ask::Ready, |query| send(query.command, Payload::In(query.length)))
            }
            Step::Log(reader) => {
                let query = reader.query();
                send(query.command, Payload::In(query.length))
            }
            Step::Command(passed) => {
                let queue = u16::from(passed.queue == QueueKind::Io);
                Ask::Command { queue, command: passed.command, payload: passed.payload() }
            }
            Step::Ready => Ask::Ready,
        }
    }

    /// The connection asked for stands.
    pub(super) fn established(&mut self, now: Time) {
        if let Step::Dial(queue) = self.step {
            self.go(Step::Connect(queue), now);
        }
    }

    /// The connection asked for cannot be had: why.
    pub(super) fn refused(&self, reason: RejectReason) -> ConnectError {
        let doing = self.doing();
        let status = |data: &PrivateData| Reject::parse(data).map(|reject| reject.status());
        match reason {
            RejectReason::Rejected(data) if status(&data).is_some() => {
                let status = status(&data).expect("the guard looked");
                ConnectError::Rejected { doing, status }
            }
            reason => ConnectError::Refused { doing, reason: Box::new(reason) },
        }
    }

    /// Whether the time asked for has come, so that there is something to do again.
    pub(super) fn woken(&mut self, now: Time) -> bool {
        let due = matches!(self.step, Step::AwaitReady) && now >= self.began + READY_INTERVAL;
        if due {
            self.go(Step::GetStatus, now);
        }
        due
    }

    /// The command asked for was answered; `data` begins with what it read.
    ///
    /// # Errors
    /// If this ends the attempt.
    pub(super) fn answered(
        &mut self,
        result: Result<u64, Refusal>,
        data: &[u8; IDENTIFY_LENGTH],
        now: Time,
    ) -> Result<(), ConnectError> {
        let doing = self.doing();
        let next = match std::mem::replace(&mut self.step, Step::Ready) {
            Step::Connect(queue) => {
                let value = result.map_err(|refusal| ConnectError::of_connect(doing, refusal))?;
                self.connected(queue, ConnectResponse::from_result(value))?
            }
            Step::Authenticate(mut authentication) => {
                if authentication.answered(result, data)? {
                    self.after_connect(authentication.queue())
                } else {
                    Step::Authenticate(authentication)
                }
            }
            Step::Scan(scan) => self.scanned(scan, result, data)?,
            // Events are a convenience: a controller which cannot be asked for them is used without.
            Step::ConfigureEvents => {
                let controller = self.controller.as_ref();
                self.scan(controller.expect("it was identified before its queues were made"))
            }
            step => {
                let value = result.map_err(|refusal| ConnectError::Answered { doing, refusal })?;
                self.advance(step, value, data, now)?
            }
        };
        self.go(next, now);
        Ok(())
    }

    /// When the current step must have ended.
    pub(super) fn deadline(&self) -> Time {
        match self.step {
            Step::AwaitReady => self.began + READY_INTERVAL,
            Step::Dial(_) => self.began + self.options.dial_patience,
            _ => self.began + COMMAND_PATIENCE,
        }
    }

    /// The current step took too long, if it did.
    pub(super) fn overdue(&self, now: Time) -> Option<ConnectError> {
        let late = now >= self.deadline() && !matches!(self.step, Step::AwaitReady);
        late.then(|| {
            let seconds = self.deadline().since(self.began).as_secs();
            ConnectError::TimedOut { doing: self.doing(), seconds }
        })
    }

    /// The connection broke.
    pub(super) fn broken(&self, fault: Fault) -> ConnectError {
        let doing = self.doing();
        let broken = ConnectError::Broken { doing, fault };
        match &self.step {
            Step::Authenticate(authentication) => authentication.news(broken),
            _ => broken,
        }
    }

    /// What is being done.
    pub(super) fn doing(&self) -> Doing {
        match &self.step {
            Step::Dial(queue) => Doing::Dial(*queue),
            Step::Connect(queue) => Doing::Connect(*queue),
            Step::Authenticate(authentication) => authentication.doing(),
            Step::GetCapabilities | Step::GetCapabilitiesAgain => Doing::Get(PropertyId::CAP),
            Step::Configure => Doing::Set(PropertyId::CC),
            Step::GetReadyTimeouts => Doing::Get(PropertyId::CRTO),
            Step::Enable | Step::GetStatus | Step::AwaitReady => Doing::Enable,
            Step::GetVersion => Doing::Get(PropertyId::VS),
            Step::IdentifyController | Step::Probe => Doing::IdentifyController,
            Step::NumberOfQueues => Doing::NumberOfQueues,
            Step::ConfigureEvents => Doing::EventConfiguration,
            Step::Scan(_) | Step::Ready => Doing::Scan,
            Step::Log(_) => Doing::DiscoveryLog,
            Step::Command(_) => Doing::Command,
        }
    }

    /// Bytes which may travel behind the commands of I/O queues.
    pub(super) fn in_capsule(&self) -> u32 {
        self.controller.as_ref().map_or(0, |controller| controller.in_capsule)
    }

    /// What came of it.
    ///
    /// # Panics
    /// If it is not ready: [`Ask::Ready`] says.
    pub(super) fn into_association(self) -> Association {
        Association {
            cntlid: self.cntlid,
            version: self.version,
            capabilities: self.capabilities,
            controller: self.controller.expect("a controller is ready once it was identified"),
            namespaces: self.namespaces,
            skipped: self.skipped,
            access: self.access,
            discovered: self.discovered,
            round_trips: self.round_trips,
            answer: self.answer,
            keys: self.options.keys.filter(|_| self.authenticates),
        }
    }

    fn go(&mut self, step: Step, now: Time) {
        self.step = step;
        self.began = now;
    }

    fn size_of(&self, queue: u16) -> u16 {
        if queue == 0 { ADMIN_QUEUE_SIZE } else { self.io_queue_size }
    }

    fn dial(&self, queue: u16) -> Ask {
        let size = self.size_of(queue);
        let cntlid = if queue == 0 { 0 } else { self.cntlid };
        Ask::Dial { queue, size, private_data: private_data::Request::new(queue, size, cntlid) }
    }

    fn connect(&self, queue: u16) -> Ask {
        let options = &self.options;
        let connect = Connect {
            record_format: 0,
            qid: queue,
            sqsize: self.size_of(queue) - 1,
            priority_class: 0,
            disable_sq_flow_control: options.disable_sqflow,
            kato_ms: if queue == 0 { options.kato_ms() } else { 0 },
        };
        let data = ConnectData::new(options.host_id, self.cntlid, &options.nqn, &options.host_nqn);
        let payload = Payload::Connect(Box::new(data));
        Ask::Command { queue, command: connect.to_command(0), payload }
    }

    fn connected(&mut self, queue: u16, response: ConnectResponse) -> Result<Step, ConnectError> {
        if queue == 0 {
            if response.cntlid > CNTLID_MAX {
                return Err(Incompatible::ReservedController(response.cntlid).into());
            }
            self.cntlid = response.cntlid;
            self.authenticates = response.authentication_required;
        }
        match (&self.options.keys, response.authentication_required) {
            (None, true) => Err(ConnectError::AuthenticationRequired),
            // Whoever wants to know whom it talks to is not content with somebody who does not say.
            (Some(keys), false) if keys.controller.is_some() => Err(ConnectError::NotAuthenticated),
            (_, false) => Ok(self.after_connect(queue)),
            (Some(keys), true) => {
                Ok(Step::Authenticate(Box::new(Authentication::new(&self.options, keys, queue, queue))))
            }
        }
    }

    /// The queue may be used.
    fn after_connect(&self, queue: u16) -> Step {
        if queue == 0 {
            return Step::GetCapabilities;
        }
        match self.options.role {
            _ if queue < self.io_queues => Step::Dial(queue + 1),
            Role::Command(passed) => Step::Command(passed),
            _ => Step::ConfigureEvents,
        }
    }

    /// What [`Ask::Compute`] asks for; nothing if it was taken already.
    pub(super) fn take_job(&mut self) -> Option<Job> {
        match &mut self.step {
            Step::Authenticate(authentication) => authentication.take_job(),
            _ => None,
        }
    }

    /// What the job came to.
    pub(super) fn computed(&mut self, outcome: Outcome) {
        if let Step::Authenticate(authentication) = &mut self.step {
            authentication.computed(outcome);
        }
    }

    /// After a step which only succeeds.
    fn advance(
        &mut self,
        step: Step,
        value: u64,
        data: &[u8; IDENTIFY_LENGTH],
        now: Time,
    ) -> Result<Step, ConnectError> {
        Ok(match step {
            Step::GetCapabilities => {
                self.learn_capabilities(value)?;
                Step::Configure
            }
            Step::Configure => Step::GetCapabilitiesAgain,
            Step::GetCapabilitiesAgain => {
                self.learn_capabilities(value)?;
                // CRWMS: the controller states how long it takes by CRTO too.
                if bit(value, 59) { Step::GetReadyTimeouts } else { Step::Enable }
            }
            Step::GetReadyTimeouts => {
                let units = bits(value, 15, 0) as u32;
                self.ready_timeout = self.ready_timeout.max(READY_UNIT * units);
                Step::Enable
            }
            Step::Enable => {
                self.ready_by = now + self.ready_timeout;
                Step::GetStatus
            }
            Step::GetStatus => self.check_ready(value, now)?,
            Step::GetVersion => {
                self.version = Version(bits(value, 31, 0) as u32);
                Step::IdentifyController
            }
            Step::IdentifyController => self.identified(data)?,
            Step::Probe => {
                self.round_trips.push(now.since(self.began));
                self.probe()
            }
            Step::NumberOfQueues => {
                let granted = QueueCounts::from_dword(bits(value, 31, 0) as u32);
                let granted = granted.ok_or(Incompatible::NoQueues)?;
                let granted = u16::try_from(granted.submission.min(granted.completion)).unwrap_or(u16::MAX);
                self.io_queues = granted.min(self.options.nr_io_queues);
                Step::Dial(1)
            }
            Step::Log(reader) => self.read_log(reader, data)?,
            Step::Command(passed) => {
                self.answer = passed.answer(value, data);
                Step::Ready
            }
            other => other,
        })
    }

    fn learn_capabilities(&mut self, value: u64) -> Result<(), ConnectError> {
        self.capabilities = Capabilities(value);
        let usable = self.capabilities.nvm_command_set() || self.capabilities.all_command_sets();
        if !usable && self.options.role != Role::Discovery {
            return Err(Incompatible::CommandSet.into());
        }
        self.ready_timeout = READY_UNIT * u32::from(self.capabilities.timeout_500ms()).max(1);
        Ok(())
    }

    fn check_ready(&self, value: u64, now: Time) -> Result<Step, ConnectError> {
        let word = bits(value, 31, 0) as u32;
        let status = ControllerStatus(word);
        // All ones is what a device that is gone reads as.
        if word == u32::MAX || status.fatal() {
            Err(ConnectError::Fatal)
        } else if status.ready() {
            Ok(Step::GetVersion)
        } else if now >= self.ready_by {
            let waited = self.ready_timeout.as_millis();
            Err(ConnectError::NotReady(u64::try_from(waited).unwrap_or(u64::MAX)))
        } else {
            Ok(Step::AwaitReady)
        }
    }

    fn identified(&mut self, data: &[u8; IDENTIFY_LENGTH]) -> Result<Step, ConnectError> {
        let controller = Controller::parse(data, self.cntlid, self.capabilities, &self.options)?;
        let next = match self.options.role {
            Role::Discovery => Step::Log(LogReader::new()),
            Role::Inquiry if controller.is_discovery => Step::Ready,
            Role::Inquiry => self.scan(&controller),
            Role::Probe(_) => self.probe(),
            Role::Command(passed) if passed.queue == QueueKind::Admin => Step::Command(passed),
            Role::Io | Role::Command(_) => Step::NumberOfQueues,
        };
        self.io_queue_size = controller.queue_size;
        self.controller = Some(controller);
        Ok(next)
    }

    fn probe(&self) -> Step {
        let Role::Probe(count) = self.options.role else { return Step::Ready };
        if self.round_trips.len() < usize::from(count) { Step::Probe } else { Step::Ready }
    }

    fn scan(&self, controller: &Controller) -> Step {
        Step::Scan(Scan::new(self.version, self.capabilities.page_shift_min(), controller))
    }

    fn scanned(
        &mut self,
        mut scan: Scan,
        result: Result<u64, Refusal>,
        data: &[u8; IDENTIFY_LENGTH],
    ) -> Result<Step, ConnectError> {
        scan.answered(result.map(|_| ()), data)?;
        if scan.query().is_some() {
            return Ok(Step::Scan(scan));
        }
        let found = scan.into_found();
        (self.namespaces, self.skipped) = (found.namespaces.unwrap_or_default(), found.skipped);
        self.access = found.access.unwrap_or_default();
        Ok(Step::Ready)
    }

    fn read_log(
        &mut self,
        mut reader: LogReader,
        data: &[u8; IDENTIFY_LENGTH],
    ) -> Result<Step, ConnectError> {
        match reader.answered(data)? {
            Progress::More => Ok(Step::Log(reader)),
            Progress::Complete(log) => {
                self.discovered = log;
                Ok(Step::Ready)
            }
        }
    }
}

/// CC as this controller has to be given it.
pub(super) fn configuration(capabilities: Capabilities, enable: bool) -> Configuration {
    /// CC.CSS: every command set there is, for a controller which offers nothing less.
    const ALL_COMMAND_SETS: u32 = 0b110 << 4;
    let plain = Configuration::new(enable);
    if capabilities.nvm_command_set() { plain } else { Configuration(plain.0 | ALL_COMMAND_SETS) }
}
