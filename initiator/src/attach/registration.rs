//! How buffers are lent to the target, as a user asks for it.
use clap::ValueEnum;
use ironside_common::verbs;
use serde::{Deserialize, Serialize};

/// How buffers are lent to the target.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Registration {
    /// The safest way there is
    #[default]
    Auto,
    /// A key for one command and one direction, ended before the command is over
    Window,
    /// One key for all buffers, for as long as the connection stands: for targets that are trusted
    Pool,
    /// A key for one command, made and ended by calls of their own: slow on adapters
    Dynamic,
}

impl Registration {
    /// The way asked for, if it is one.
    #[must_use]
    pub const fn asked(self) -> Option<verbs::Registration> {
        match self {
            Self::Auto => None,
            Self::Window => Some(verbs::Registration::Window),
            Self::Pool => Some(verbs::Registration::Pool),
            Self::Dynamic => Some(verbs::Registration::Dynamic),
        }
    }
}
