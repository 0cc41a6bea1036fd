//! DH-HMAC-CHAP on one queue, as connecting and a later [`Reauthentication`] go through it: which message is to be
//! sent or fetched next, and what an answer means.
use std::sync::Arc;

use ironside_common::auth::{self, Job, Keys, Next, Outcome, PROTOCOL_SPECIFIC, SECURITY_PROTOCOL};
use ironside_common::nvme::FabricsType;
use ironside_common::nvme::fabrics::Authentication as Fields;

use super::error::{ConnectError, Doing};
use super::options::HostOptions;
use super::queue::Refusal;
use super::setup::{Ask, Payload};

/// One authentication of one queue.
#[derive(Debug)]
pub(super) struct Authentication {
    queue: u16,
    machine: auth::Host,
}

impl Authentication {
    /// `transaction` tells it from others of the same association.
    pub(super) fn new(options: &HostOptions, keys: &Arc<Keys>, queue: u16, transaction: u16) -> Self {
        let HostOptions { host_nqn, nqn, .. } = *options;
        Self { queue, machine: auth::Host::new(host_nqn, nqn, Arc::clone(keys), transaction) }
    }

    pub(super) const fn queue(&self) -> u16 {
        self.queue
    }

    pub(super) const fn doing(&self) -> Doing {
        if self.machine.awaits_verdict() {
            Doing::AwaitVerdict(self.queue)
        } else {
            Doing::Authenticate(self.queue)
        }
    }

    /// The next message, either way, or what is to be computed before.
    ///
    /// # Panics
    /// If it has ended: [`Self::answered`] says.
    pub(super) fn ask(&self) -> Ask {
        let queue = self.queue;
        let command = |send_or_receive, length| {
            let (security_protocol, specific) = (SECURITY_PROTOCOL, PROTOCOL_SPECIFIC);
            Fields { security_protocol, specific, length }.to_command(send_or_receive, 0)
        };
        match self.machine.next() {
            Next::Send(bytes) => {
                let length = u32::try_from(bytes.len()).expect("a message has less than 2 KiB");
                let command = command(FabricsType::AUTHENTICATION_SEND, length);
                Ask::Command { queue, command, payload: Payload::Out(bytes) }
            }
            Next::Receive(length) => {
                let command = command(FabricsType::AUTHENTICATION_RECEIVE, length);
                Ask::Command { queue, command, payload: Payload::In(length) }
            }
            Next::Compute => Ask::Compute,
            Next::Authenticated | Next::Failed(_) => {
                unreachable!("an authentication which has ended is left")
            }
        }
    }

    /// The command asked for was answered; `data` begins with what it read. Whether both ends are known now.
    ///
    /// # Errors
    /// If they are not, and never will be.
    pub(super) fn answered(
        &mut self,
        result: Result<u64, Refusal>,
        data: &[u8],
    ) -> Result<bool, ConnectError> {
        let doing = Doing::Authenticate(self.queue);
        let value = result.map_err(|refusal| ConnectError::Answered { doing, refusal });
        match self.machine.next() {
            Next::Send(_) => {
                value.map_err(|error| self.news(error))?;
                self.machine.sent();
            }
            Next::Receive(length) => {
                value?;
                self.machine.received(&data[..length as usize]);
            }
            Next::Compute | Next::Authenticated | Next::Failed(_) => {}
        }
        match self.machine.next() {
            Next::Authenticated => Ok(true),
            Next::Failed(error) => Err(ConnectError::Authentication { doing, error }),
            _ => Ok(false),
        }
    }

    /// What [`Ask::Compute`] asks for; nothing if it was taken already.
    pub(super) fn take_job(&mut self) -> Option<Job> {
        self.machine.take_job()
    }

    /// What the job came to.
    pub(super) fn computed(&mut self, outcome: Outcome) {
        self.machine.computed(outcome);
    }

    /// Why it ended with `error`. A controller may refuse to hear why it did not convince us, or hang up: then what we
    /// had to say is the news.
    pub(super) fn news(&self, error: ConnectError) -> ConnectError {
        let doing = self.doing();
        self.machine.failure().map_or(error, |error| ConnectError::Authentication { doing, error })
    }
}
