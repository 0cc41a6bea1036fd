//! The thread which computes for one reactor what would keep its connections waiting: Diffie-Hellman of authentications.
//! It is there once something has to be computed, and ends with its reactor.
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, SendError};
use std::thread;

use super::{Job, Outcome, SystemRandomness};

/// Takes what became of the job of this name back to the reactor. False once that is gone.
type Reply<N> = dyn Fn(N, Outcome) -> bool + Send + Sync;

/// The way to the thread, for a reactor which calls its jobs by `N`.
pub struct Computing<N> {
    reply: Arc<Reply<N>>,
    jobs: Option<mpsc::Sender<(N, Job)>>,
}

impl<N: Send + 'static> Computing<N> {
    /// `reply` is called on that thread.
    pub fn new(reply: impl Fn(N, Outcome) -> bool + Send + Sync + 'static) -> Self {
        Self { reply: Arc::new(reply), jobs: None }
    }

    /// Has a job computed. There are never more than connections.
    ///
    /// # Errors
    /// The job, if the system has no thread for it: whoever wants it runs it.
    pub fn submit(&mut self, name: N, job: Job) -> Result<(), Job> {
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
        jobs.send((name, job)).map_err(|SendError((_, job))| job)
    }

    fn start(&self) -> io::Result<mpsc::Sender<(N, Job)>> {
        let (jobs, taken) = mpsc::channel::<(N, Job)>();
        let reply = Arc::clone(&self.reply);
        thread::Builder::new().name("authentication".into()).spawn(move || {
            for (name, job) in taken {
                if !reply(name, job.run(&mut SystemRandomness)) {
                    return;
                }
            }
        })?;
        Ok(jobs)
    }
}

impl<N> fmt::Debug for Computing<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Computing").field("runs", &self.jobs.is_some()).finish()
    }
}
