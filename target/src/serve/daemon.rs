//! The control thread's view of a serving target: what is served, by whom it is accepted, and how it goes over to
//! something else while hosts are connected. Whoever wants a change, by signal or otherwise, calls here.
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::nvme::Nqn;
use ironside_common::reactor::clock::now;
use nix::poll::poll;

use super::departed::Departed;
use super::reactors::Reactors;
use super::{ServeError, chain};
use crate::acceptor::{Acceptor, Door};
use crate::catalog::{Catalog, Listener};
use crate::control::config::Config;
use crate::control::prepare::{Served, prepare};
use crate::control::reload::{Change, ReloadError, changes, plan, summary};
use crate::control::source::Source;
use crate::metrics::{self, Metrics};
use crate::poll_group::Survey;
use crate::rpc::{Applied, Failure, Subject};

/// A target that serves.
pub(super) struct Daemon {
    /// Where its configuration comes from.
    source: Source,
    served: Served,
    reactors: Reactors,
    /// Who tells what is counted, if anybody does.
    metrics: Option<Metrics>,
    /// Namespaces whose numbers are not for others yet.
    departed: Departed,
    /// Nothing while listeners change, and if the system had no thread left for it.
    acceptor: Option<Acceptor>,
}

/// Why what is served stays as it is.
#[derive(Debug, thiserror::Error)]
enum ChangeError {
    #[error(transparent)]
    Reload(#[from] ReloadError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("a medium cannot be attached")]
    Attach(#[source] io::Error),
}

impl Daemon {
    pub(super) fn start(config: Config, source: Source) -> Result<Self, ServeError> {
        let served = prepare(config)?;
        let doors = served.catalog.listeners().iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let at = served.config.metrics;
        let told =
            at.map(|at| metrics::bind(at).map_err(|error| ServeError::Metrics(at, error))).transpose()?;
        let reactors = Reactors::start(&served.config, &served.catalog)?;
        // No host comes by an adapter before reactors have registered their memory with it, which takes a while.
        let listening = doors.iter().try_for_each(listen);
        let accepting = listening.and_then(|()| {
            let metrics = told.map(|listener| Metrics::start(listener, reactors.senders.clone())).transpose();
            let acceptor = Acceptor::start(doors, reactors.senders.clone());
            Ok((metrics.map_err(ServeError::Thread)?, acceptor.map_err(ServeError::Thread)?))
        });
        match accepting {
            Ok((metrics, acceptor)) => {
                let (departed, acceptor) = (Departed::default(), Some(acceptor));
                Ok(Self { source, served, reactors, metrics, departed, acceptor })
            }
            Err(error) => {
                reactors.drain()?;
                Err(error)
            }
        }
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.served.catalog
    }

    pub(super) fn config(&self) -> &Config {
        &self.served.config
    }

    /// Whether a reactor has ended, and all has to.
    pub(super) fn has_failed(&self) -> bool {
        self.reactors.has_failed()
    }

    /// Reads the configuration again and goes over to what it says. If that cannot be served, nothing changes. The
    /// log says which.
    fn reload_and_say(&mut self) -> Result<Applied, ChangeError> {
        let result = self.try_reload();
        match &result {
            Ok(applied) => {
                for setting in &applied.kept {
                    tracing::warn!(
                        "{setting} cannot be changed while it is served: it stays as it is until a restart"
                    );
                }
                tracing::info!("reloaded: {}", summary(&applied.changes));
            }
            Err(error) => {
                tracing::error!("not reloaded, what was served before goes on to be: {}", chain(error));
            }
        }
        result
    }

    fn try_reload(&mut self) -> Result<Applied, ChangeError> {
        let (config, source) = self.source.again(&self.served.config).map_err(ReloadError::from)?;
        self.refresh_media();
        let applied = self.change_to(config)?;
        self.source = source;
        Ok(applied)
    }

    /// Goes over to another configuration.
    fn change_to(&mut self, config: Config) -> Result<Applied, ChangeError> {
        let (next, kept) = plan(&self.served, config).map_err(ReloadError::from)?;
        let changes = changes(&self.served.catalog, &next.catalog);
        if changes.is_empty() {
            // The same to hosts, whatever else the file says now.
            self.served = next.with_catalog(Arc::clone(&self.served.catalog));
        } else if changes.iter().any(is_replacement) {
            self.replace(next, &changes)?;
        } else {
            self.wait_for_numbers(&next.catalog);
            self.go_over_to(next)?;
        }
        Ok(Applied { changes, kept })
    }

    /// Where another namespace takes a number, nothing stands there for a while: a host which still means the old
    /// one shall not write to the new one, and Linux takes a new one only where it has seen none.
    fn replace(&mut self, next: Served, changes: &[Change]) -> Result<(), ChangeError> {
        let replaced = |nqn: &Nqn, nsid| changes.contains(&Change::NamespaceReplaced(*nqn, nsid));
        let (paused, whole) = Catalog::clone(&next.catalog).after_pause_of(replaced);
        // It may bring others under numbers which went before.
        self.wait_for_numbers(&paused);
        self.go_over_to(next.with_catalog(Arc::new(paused)))?;
        self.wait_for_numbers(&whole);
        self.go_over_to(next.with_catalog(Arc::new(whole)))
    }

    /// The namespace which went may have done so in a change before this one.
    fn wait_for_numbers(&self, next: &Catalog) {
        loop {
            let left = self.departed.pause_before(next, now());
            if left.is_zero() {
                return;
            }
            // Not a moment too early.
            let _ = poll(&mut [], u16::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u16::MAX));
        }
    }

    /// Tells hosts of media which have another size by now.
    pub(super) fn look_at_media(&mut self) {
        self.refresh_media();
        let Some(catalog) = self.served.catalog.resized() else { return };
        let next = self.served.with_catalog(Arc::new(catalog));
        let changes = changes(&self.served.catalog, &next.catalog);
        match self.go_over_to(next) {
            Ok(()) => tracing::info!("{}", summary(&changes)),
            Err(error) => tracing::error!("sizes have changed, but: {}", chain(&error)),
        }
    }

    fn refresh_media(&self) {
        for medium in self.served.media() {
            if let Err(error) = medium.refresh() {
                tracing::warn!(%error, "how large a medium is cannot be seen");
            }
        }
    }

    /// Reactors are ready before anybody comes to a new listener. New listeners are there before anybody is told of them,
    /// and old ones are gone.
    fn go_over_to(&mut self, next: Served) -> Result<(), ChangeError> {
        let attached = self.reactors.attach(&next.catalog).map_err(ChangeError::Attach);
        let listening = attached.and_then(|()| Ok(self.change_listeners(&next.catalog)?));
        if let Err(error) = listening {
            // What was attached is let go of.
            self.reactors.switch(&self.served.catalog).map_err(ChangeError::Attach)?;
            return Err(error);
        }
        self.reactors.switch(&next.catalog).map_err(ChangeError::Attach)?;
        let before = std::mem::replace(&mut self.served, next);
        self.reactors.announce();
        let patience = Duration::from_secs(self.served.config.drain_timeout_s.into());
        if !self.reactors.settle(patience) {
            tracing::warn!(
                "a medium has not answered commands that had begun before their way to it ended, and they may still \
                 happen: until it does, do not take for granted that nothing is written by this way"
            );
        }
        self.departed.note(&before.catalog, &self.served.catalog, now());
        Ok(())
    }

    fn change_listeners(&mut self, next: &Catalog) -> Result<(), ServeError> {
        // None is left if the system had no thread for one the last time: then all is made anew.
        let doors = self.acceptor.take().map(Acceptor::stop).unwrap_or_default();
        let (doors, result) = exchange(doors, next.listeners());
        self.acceptor =
            Some(Acceptor::start(doors, self.reactors.senders.clone()).map_err(ServeError::Thread)?);
        result
    }

    /// Accepts nobody any more, finishes what is under way and ends.
    pub(super) fn stop(self) -> Result<(), ServeError> {
        drop(self.acceptor.map(Acceptor::stop));
        drop(self.metrics);
        self.reactors.drain()
    }
}

impl Subject for Daemon {
    fn served(&self) -> &Served {
        &self.served
    }

    fn source(&self) -> &Source {
        &self.source
    }

    fn source_mut(&mut self) -> &mut Source {
        &mut self.source
    }

    fn take_over(&mut self, config: Config) -> Result<Applied, Failure> {
        Ok(self.change_to(config)?)
    }

    fn reload(&mut self) -> Result<Applied, Failure> {
        Ok(self.reload_and_say()?)
    }

    fn survey(&mut self) -> Result<Vec<Survey>, Failure> {
        self.reactors.survey().map_err(|error| Failure::System(error.to_string(), None))
    }

    fn refresh(&mut self) {
        self.look_at_media();
    }
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        let text = chain(&error);
        match error {
            ChangeError::Reload(ReloadError::Config(error)) => Self::Config(error),
            ChangeError::Reload(ReloadError::Prepare(error)) => Self::Prepare(error),
            ChangeError::Serve(ServeError::Listen(_, error)) | ChangeError::Attach(error) => {
                Self::System(text, error.raw_os_error())
            }
            ChangeError::Serve(_) => Self::System(text, None),
        }
    }
}

const fn is_replacement(change: &Change) -> bool {
    matches!(change, Change::NamespaceReplaced(..))
}

fn bind(listener: &Listener) -> Result<Door, ServeError> {
    Door::bind(*listener).map_err(|error| ServeError::Listen(listener.address, error))
}

fn listen(door: &Door) -> Result<(), ServeError> {
    door.listen().map_err(|error| ServeError::Listen(door.listener().address, error))
}

fn open(listener: &Listener) -> Result<Door, ServeError> {
    let door = bind(listener)?;
    listen(&door)?;
    Ok(door)
}

/// Doors where `wanted` says, those of them which are there already included; or all as they were, and why.
fn exchange(doors: Vec<Door>, wanted: &[Listener]) -> (Vec<Door>, Result<(), ServeError>) {
    let missing: Vec<_> =
        wanted.iter().filter(|&one| doors.iter().all(|door| !door.listener().is(one))).collect();
    let (mut kept, unwanted): (Vec<_>, Vec<_>) =
        doors.into_iter().partition(|door| wanted.iter().any(|one| door.listener().is(one)));
    // One which goes may stand in the way of one which comes: a wildcard and an address of the same port.
    let gone: Vec<_> = unwanted.iter().map(Door::listener).collect();
    drop(unwanted);
    match missing.into_iter().map(open).collect::<Result<Vec<_>, _>>() {
        Ok(new) => {
            kept.extend(new);
            (kept, Ok(()))
        }
        Err(error) => {
            for door in gone.iter().map(open) {
                match door {
                    Ok(door) => kept.push(door),
                    Err(error) => tracing::error!("{}", chain(&error)),
                }
            }
            (kept, Err(error))
        }
    }
}
