//! Who is told: the target, as methods see it.
use crate::control::config::{Config, ConfigError};
use crate::control::draft::Draft;
use crate::control::prepare::{PrepareError, Served};
use crate::control::reload::Change;
use crate::control::source::Source;
use crate::poll_group::Survey;

use super::RpcError;
use super::error::errno_of;

/// What a change has come to.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    pub changes: Vec<Change>,
    /// What stays as it was until a restart.
    pub kept: Vec<String>,
}

/// Why what is served stays as it was, or what else went wrong with a change.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] RpcErrorText),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The system refuses, in words.
    #[error("{0}")]
    System(String, Option<i32>),
    #[error("{0} has been changed since it was read: `ironside-target ctl reload` (SIGHUP) first")]
    Edited(String),
    #[error(
        "the file of the configuration is not what was read, and nothing is changed: {0}; put it back, or have another read (`ironside-target ctl reload`, SIGHUP)"
    )]
    Lost(ConfigError),
    /// The change is done, all the same.
    #[error(
        "the change is in force, but not kept: {path}: {reason}. The next change goes out from what the file says: repeat this one, or edit the file and have it read (`ironside-target ctl reload`, SIGHUP)"
    )]
    InForce { path: String, reason: String },
    #[error("{path} cannot be replaced, and a change that is not kept is none: {source}")]
    NotKept { path: String, source: std::io::Error },
}

/// An error of a method on its way through a change.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message)]
pub struct RpcErrorText(pub RpcError);

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        Self::Refused(RpcErrorText(error))
    }
}

impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        let message = crate::serve::chain(&failure);
        match failure {
            Failure::Refused(RpcErrorText(error)) => error,
            Failure::Config(_) => Self::invalid(message),
            Failure::Prepare(error) => match errno_of(&error) {
                Some(errno) => Self::errno(errno, message),
                None => Self::invalid(message),
            },
            Failure::System(_, Some(errno)) => Self { code: -i64::from(errno), message },
            Failure::NotKept { source, .. } => {
                Self { code: -i64::from(source.raw_os_error().unwrap_or(libc::EIO)), message }
            }
            Failure::System(_, None) | Failure::Edited(_) | Failure::Lost(_) | Failure::InForce { .. } => {
                Self::internal(message)
            }
        }
    }
}

/// The target, to whoever has a say in it.
pub trait Subject {
    fn served(&self) -> &Served;

    /// Where the configuration comes from, and is kept.
    fn source(&self) -> &Source;

    fn source_mut(&mut self) -> &mut Source;

    /// Goes over to another configuration, or does nothing at all.
    ///
    /// # Errors
    /// Why nothing was done.
    fn take_over(&mut self, config: Config) -> Result<Applied, Failure>;

    /// The configuration file, if what is changed is kept there.
    fn file(&self) -> Option<&std::path::Path> {
        self.source().kept_in()
    }

    /// The configuration in force as the text of a file.
    fn text(&self) -> String {
        self.source().text().to_owned()
    }

    /// Changes the configuration, goes over to what it says and keeps it; or does nothing at all.
    ///
    /// # Errors
    /// Why nothing was done, or what is in force without being kept ([`Failure::InForce`]).
    fn change(
        &mut self,
        edit: &mut dyn FnMut(&mut Draft) -> Result<(), RpcError>,
    ) -> Result<Applied, Failure> {
        let mut draft = self.source().draft(self.served().unnamed())?;
        edit(&mut draft)?;
        let (text, config) = draft.into_parts();
        let pending = self.source().write(text)?;
        let applied = self.take_over(config)?;
        self.source_mut().keep(pending)?;
        Ok(applied)
    }

    /// Reads the configuration file again and goes over to what it says.
    ///
    /// # Errors
    /// Why nothing was done.
    fn reload(&mut self) -> Result<Applied, Failure>;

    /// What each reactor has and has done.
    ///
    /// # Errors
    /// If one does not answer.
    fn survey(&mut self) -> Result<Vec<Survey>, Failure>;

    /// Looks again how large media are which nobody uses.
    fn refresh(&mut self);
}
