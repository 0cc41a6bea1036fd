//! Secrets which became others while the volume is attached: read again when somebody says so, by `ironside rekey` or
//! SIGHUP, and whenever the connection is lost. By the main thread: should their files lie on the very volume, then only
//! questions wait for it, and never the reactor, which has to bring it back.
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Daemon;
use crate::cli::attachment::Answer;
use crate::cli::secrets::SecretsError;
use crate::host::HostEvent;

/// How long to wait for controllers before who asked is told that it goes on; less than they wait themselves.
const PATIENCE: Duration = Duration::from_secs(4);

impl Daemon {
    /// Reads secrets again, and has associations which stand authenticate by them. What came of it.
    pub(super) fn rekey(&mut self) -> Answer {
        let failed = |why: String| {
            warn!("not authenticated again: {why}");
            Answer::NotRekeyed { why }
        };
        let keys = match self.given.read_again(&self.attachment.specification.options()) {
            Ok(Some(keys)) => keys,
            Ok(None) => return failed("there is no secret for this host any more".into()),
            Err(error) => return failed(error.to_string()),
        };
        self.keys = Some(Arc::clone(&keys));
        // What happened before is not the answer.
        self.follow();
        let Some(mut associations) = self.attached.rekey(&keys) else {
            return failed("its reactor does not answer; the log may say why".into());
        };
        if associations == 0 {
            return Answer::Rekeyed { queues: 0, goes_on: false };
        }
        let (end, mut queues) = (Instant::now() + PATIENCE, 0);
        while associations > 0 {
            let Ok(event) = self.attached.next_event(end.saturating_duration_since(Instant::now())) else {
                return Answer::Rekeyed { queues, goes_on: true };
            };
            match &event {
                HostEvent::Reauthenticated { queues: more } => {
                    associations -= 1;
                    queues += more;
                }
                HostEvent::ReauthenticationFailed(error) => return failed(error.to_string()),
                HostEvent::Lost(fault) => return failed(fault.to_string()),
                _ => {}
            }
            self.note(event);
        }
        Answer::Rekeyed { queues, goes_on: false }
    }

    /// The connection is lost: attempts that follow go by the secrets there are now.
    pub(super) fn refresh_secrets(&mut self) {
        match self.given.read_again(&self.attachment.specification.options()) {
            Ok(Some(keys)) if self.keys.as_ref() != Some(&keys) => {
                info!("secrets have changed: attempts to connect go by those there are now");
                self.keys = Some(Arc::clone(&keys));
                // One that has just succeeded authenticates again.
                let _associations = self.attached.rekey(&keys);
            }
            Ok(_) => {}
            Err(error) => warn!("secrets cannot be read again, those there were hold: {error}"),
        }
    }

    /// Those it begins with.
    pub(super) fn remember_secrets(&mut self) -> Result<(), SecretsError> {
        self.keys = self.attachment.specification.secrets.keys(&self.given)?;
        Ok(())
    }
}
