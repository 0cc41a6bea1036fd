//! The thread which computes for one reactor what would keep its connections waiting: Diffie-Hellman of authentications.
//! It is there once something has to be computed, and ends with its reactor.
use std::io;
use std::sync::mpsc::{self, SendError};
use std::thread;

use ironside_common::auth::{Job, SystemRandomness};
use ironside_common::reactor::Sender;

use super::Letter;
use crate::poll_group::QueueName;

/// The way to the thread, and from it into the reactor's own mailbox.
pub(super) struct Computing {
    answers: Sender<Letter>,
    jobs: Option<mpsc::Sender<(QueueName, Job)>>,
}

impl Computing {
    pub(super) fn new(answers: Sender<Letter>) -> Self {
        Self { answers, jobs: None }
    }

    /// Has a job computed; its outcome comes by [`Letter::Computed`]. There are never more than connections.
    ///
    /// # Errors
    /// The job, if the system has no thread for it: whoever wants it runs it.
    pub(super) fn submit(&mut self, queue: QueueName, job: Job) -> Result<(), Job> {
        if self.jobs.is_none() {
            match self.start() {
                Ok(jobs) => self.jobs = Some(jobs),
                Err(error) => {
                    tracing::warn!(%error, "no thread to authenticate on: other connections wait");
                    return Err(job);
                }
            }
        }
        let Some(jobs) = &self.jobs else { return Err(job) };
        jobs.send((queue, job)).map_err(|SendError((_, job))| job)
    }

    fn start(&self) -> io::Result<mpsc::Sender<(QueueName, Job)>> {
        let (jobs, taken) = mpsc::channel::<(QueueName, Job)>();
        let answers = self.answers.clone();
        thread::Builder::new().name("authentication".into()).spawn(move || {
            for (queue, job) in taken {
                let outcome = job.run(&mut SystemRandomness);
                if answers.send(Letter::Computed { queue, outcome }).is_err() {
                    // The reactor is gone.
                    return;
                }
            }
        })?;
        Ok(jobs)
    }
}
