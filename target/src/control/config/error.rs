//! What is wrong with a configuration, told as a compiler would: where, the line itself, and a way out.
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::{Conflict, Place, ValueError};

#[derive(Debug)]
pub struct ConfigError {
    pub problem: Problem,
    /// The file, or what else the configuration came from.
    origin: String,
    position: Option<Box<Position>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("cannot be read: {0}")]
    Read(io::Error),
    #[error("cannot be read again: it is no regular file")]
    NoFile,
    #[error("is too large for a configuration: more than 16 MiB")]
    TooLarge,
    #[error("not TOML: {0}")]
    Syntax(String),
    #[error("not as nvmetcli saves it: {0}")]
    Nvmetcli(String),
    #[error("unknown key `{key}`")]
    UnknownKey { key: String, nearest: Option<&'static str> },
    #[error("`{key}` takes {expected}, not {found}")]
    WrongType { key: &'static str, expected: &'static str, found: &'static str },
    #[error("`{key}`: {error}")]
    Value { key: &'static str, error: ValueError },
    #[error("a namespace has exactly one of `path`, `ram` and `null`")]
    Backing,
    #[error(transparent)]
    Conflict(#[from] Conflict),
}

/// A piece of one line.
#[derive(Debug)]
struct Position {
    line: usize,
    column: usize,
    width: usize,
    text: String,
}

impl ConfigError {
    pub(in crate::control) fn unreadable(path: &Path, problem: Problem) -> Self {
        Self { problem, origin: path.display().to_string(), position: None }
    }

    /// In the text of `path`, at the bytes `span`.
    pub(super) fn at(path: &Path, text: &str, span: &Range<usize>, problem: Problem) -> Self {
        let before = text.get(..span.start).unwrap_or_default();
        let start = before.len();
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[begin..].lines().next().unwrap_or_default();
        let column = text[begin..start].chars().count();
        let marked = text.get(start..span.end).and_then(|marked| marked.lines().next()).unwrap_or_default();
        let position = Position {
            line: before.matches('\n').count() + 1,
            column: column + 1,
            width: marked.chars().count().max(1),
            text: line.replace('\t', " "),
        };
        Self { problem, origin: path.display().to_string(), position: Some(Box::new(position)) }
    }

    /// Said by flags, where there is no line to show.
    pub fn of_flags((place, conflict): (Place, Conflict)) -> Self {
        Self { problem: conflict.into(), origin: format!("command line, {place}"), position: None }
    }

    /// Line and column, counted from one.
    pub fn line_and_column(&self) -> Option<(usize, usize)> {
        self.position.as_ref().map(|position| (position.line, position.column))
    }

    fn advice(&self) -> String {
        match &self.problem {
            Problem::UnknownKey { nearest: Some(nearest), .. } => format!(" did you mean `{nearest}`?"),
            _ => String::new(),
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Position { line, column, width, text }) = self.position.as_deref() else {
            return write!(f, "{}: {}", self.origin, self.problem);
        };
        let margin = line.to_string().len();
        writeln!(f, "{}", self.problem)?;
        writeln!(f, "{:margin$}--> {}:{line}:{column}", "", self.origin)?;
        writeln!(f, "{:margin$} |", "")?;
        writeln!(f, "{line} | {text}")?;
        write!(
            f,
            "{:margin$} | {:indent$}{}{}",
            "",
            "",
            "^".repeat(*width),
            self.advice(),
            indent = column - 1
        )
    }
}

/// The known key which is closest to what was written, if one is close at all.
pub(super) fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    let distance = |candidate: &&'static str| strsim::damerau_levenshtein(key, candidate);
    known.iter().copied().min_by_key(distance).filter(|best| distance(best) <= 1 + best.len() / 3)
}
