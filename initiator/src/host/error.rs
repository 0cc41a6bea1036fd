//! Why a host has no connection, in words for whoever asked for one.
use std::fmt;

use ironside_common::auth::HostError;
use ironside_common::nvme::Status;
use ironside_common::nvme::fabrics::InvalidParameter;
use ironside_common::nvme::private_data::RejectStatus;
use ironside_common::nvme::property::PropertyId;
use ironside_common::verbs::RejectReason;

use super::Fault;
use super::queue::Refusal;
use super::scan::ScanError;

/// What a host was doing when it failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Doing {
    /// Making the connection of a queue.
    Dial(u16),
    /// Fabrics Connect of a queue.
    Connect(u16),
    /// DH-HMAC-CHAP on a queue.
    Authenticate(u16),
    /// Waiting for what the controller makes of our response.
    AwaitVerdict(u16),
    Get(PropertyId),
    Set(PropertyId),
    Enable,
    IdentifyController,
    NumberOfQueues,
    EventConfiguration,
    Scan,
    DiscoveryLog,
    /// Sending a user's own command.
    Command,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(0) => f.write_str("connecting the admin queue"),
            Self::Dial(queue) => write!(f, "connecting I/O queue {queue}"),
            Self::Connect(0) => f.write_str("Fabrics Connect of the admin queue"),
            Self::Connect(queue) => write!(f, "Fabrics Connect of I/O queue {queue}"),
            Self::Authenticate(0) => f.write_str("authenticating on the admin queue"),
            Self::Authenticate(queue) => write!(f, "authenticating on I/O queue {queue}"),
            Self::AwaitVerdict(queue) => {
                write!(
                    f,
                    "{}, waiting for the controller to accept the host's secret",
                    Self::Authenticate(*queue)
                )
            }
            Self::Get(property) => write!(f, "reading {property}"),
            Self::Set(property) => write!(f, "writing {property}"),
            Self::Enable => f.write_str("enabling the controller"),
            Self::IdentifyController => f.write_str("identifying the controller"),
            Self::NumberOfQueues => f.write_str("asking for I/O queues"),
            Self::EventConfiguration => f.write_str("asking for events"),
            Self::Scan => f.write_str("looking for namespaces"),
            Self::DiscoveryLog => f.write_str("reading the discovery log"),
            Self::Command => f.write_str("sending the command"),
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConnectError {
    #[error("{doing}: {reason}")]
    Refused { doing: Doing, reason: Box<RejectReason> },
    /// The target gave one of NVMe/RDMA's reasons.
    #[error("{doing}: the target rejected it: {status}")]
    Rejected { doing: Doing, status: RejectStatus },
    #[error("{doing}: no answer within {seconds} s")]
    TimedOut { doing: Doing, seconds: u64 },
    #[error("{doing}: {refusal}")]
    Answered { doing: Doing, refusal: Refusal },
    #[error("{doing}: the controller objects to {parameter}{hint}", hint = hint(*parameter))]
    InvalidParameter { doing: Doing, parameter: InvalidParameter, refusal: Refusal },
    #[error("the subsystem does not admit this host")]
    HostNotAllowed { refusal: Refusal },
    #[error("the controller wants this host to authenticate, and there is no secret for that")]
    AuthenticationRequired,
    #[error("the controller does not authenticate, though there is a secret by which it has to")]
    NotAuthenticated,
    #[error("{doing}: {error}")]
    Authentication { doing: Doing, error: HostError },
    #[error("the controller did not become ready within {0} ms")]
    NotReady(u64),
    #[error("the controller reports a fatal error")]
    Fatal,
    #[error("the controller cannot be used: {0}")]
    Incompatible(#[from] Incompatible),
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("the discovery log kept changing while it was read")]
    UnsteadyLog,
    #[error("the connection broke while {doing}: {fault}")]
    Broken { doing: Doing, fault: Fault },
    #[error("the controller could not be reached again within the time allowed, in {attempts} attempts")]
    GaveUp { attempts: usize },
}

/// What makes a controller useless for us.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Incompatible {
    #[error("controller identifier {0:#06x} is reserved")]
    ReservedController(u16),
    #[error("it calls itself controller {identified:#06x}, but Connect said {connected:#06x}")]
    OtherController { connected: u16, identified: u16 },
    #[error("it offers no NVM command set")]
    CommandSet,
    #[error("it takes no keyed SGL data blocks")]
    KeyedSgl,
    #[error("its command capsules are {0} bytes; at least 64 are needed")]
    CommandCapsule(u32),
    #[error("its response capsules are {0} bytes; at least 16 are needed")]
    ResponseCapsule(u32),
    #[error("it wants in-capsule data at an offset of {0} bytes; only 0 is supported")]
    InCapsuleOffset(u32),
    #[error("it does not support keep-alive")]
    KeepAlive,
    #[error("it is not a discovery controller")]
    NotDiscovery,
    #[error("it is a discovery controller and has no volumes")]
    Discovery,
    #[error("it granted no I/O queue")]
    NoQueues,
    #[error("its queues have {0} entries; at least 2 are needed")]
    QueueSize(u32),
}

impl ConnectError {
    /// Whether trying again is pointless: the target said so, or it can never work. An I/O queue may also
    /// be refused because its controller has just gone, so only the admin queue's answer is final.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Answered { doing: Doing::Connect(0), refusal }
            | Self::InvalidParameter { doing: Doing::Connect(0), refusal, .. }
            | Self::HostNotAllowed { refusal } => refusal.status.dnr(),
            Self::AuthenticationRequired | Self::NotAuthenticated | Self::Incompatible(_) => true,
            _ => false,
        }
    }

    /// Whether nobody was there to answer, so that the same target may still answer by another provider.
    #[must_use]
    pub fn nobody_answered(&self) -> bool {
        match self {
            Self::Refused { doing: Doing::Dial(0), reason } => {
                matches!(**reason, RejectReason::Unreachable(_) | RejectReason::TimedOut)
            }
            Self::TimedOut { doing, .. } => *doing == Doing::Dial(0),
            _ => false,
        }
    }

    /// What a refusal of Connect means.
    pub(super) fn of_connect(doing: Doing, refusal: Refusal) -> Self {
        if refusal.status.is(Status::CONNECT_INVALID_HOST) {
            return Self::HostNotAllowed { refusal };
        }
        if refusal.status.is(Status::CONNECT_INVALID_PARAMETERS) {
            let parameter = InvalidParameter::from_result(refusal.value);
            return Self::InvalidParameter { doing, parameter, refusal };
        }
        if refusal.status.is(Status::AUTHENTICATION_REQUIRED) {
            return Self::AuthenticationRequired;
        }
        Self::Answered { doing, refusal }
    }
}

fn hint(parameter: InvalidParameter) -> &'static str {
    match parameter {
        InvalidParameter::SUBNQN => ": it has no subsystem of that name here",
        InvalidParameter::HOSTNQN => ": this host is not admitted",
        InvalidParameter::CNTLID => ": it does not know the controller any more",
        InvalidParameter::SQSIZE => ": choose another queue size",
        _ => "",
    }
}
