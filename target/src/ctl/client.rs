//! The other end of the control socket.
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::rpc::{FrameError, Framer};

/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why something is not done, or not known.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    #[error("no target answers at {path}: {hint}", path = .path.display(), hint = hint(.source))]
    Connect { path: PathBuf, source: io::Error },
    #[error("the target has gone")]
    Gone(#[source] io::Error),
    #[error("the answer makes no sense: {0}")]
    Answer(String),
    /// The target's own words.
    #[error("{message}")]
    Refused { code: i64, message: String },
}

impl CtlError {
    /// Whether there was nobody to ask.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Gone(_))
    }
}

fn hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "it does not run, or has no `control` in its configuration; -s names another socket".into()
        }
        io::ErrorKind::PermissionDenied => "the socket is for the user alone who runs the target".into(),
        io::ErrorKind::ConnectionRefused => "the target which made this socket does not run any more".into(),
        _ => error.to_string(),
    }
}

/// Where a target is looked for unless told otherwise.
pub fn default_socket() -> PathBuf {
    let said = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = || said("XDG_RUNTIME_DIR").filter(|_| !nix::unistd::geteuid().is_root());
    said("IRONSIDE_CONTROL").unwrap_or_else(|| match of_user() {
        Some(directory) => directory.join("ironside/target.sock"),
        None => "/run/ironside/target.sock".into(),
    })
}

pub(super) struct Client {
    stream: UnixStream,
    framer: Framer,
    number: u64,
}

impl Client {
    pub(super) fn connect(path: &Path) -> Result<Self, CtlError> {
        let failed = |source| CtlError::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(failed)?;
        Ok(Self { stream, framer: Framer::with_limit(ANSWER_BYTES_MAX), number: 0 })
    }

    /// Calls a method, and waits for what it gives: a change may take as long as the media it waits for.
    pub(super) fn call(&mut self, method: &str, parameters: Value) -> Result<Value, CtlError> {
        self.number += 1;
        let parameters = if parameters.is_null() { json!({}) } else { parameters };
        let request = json!({ "jsonrpc": "2.0", "id": self.number, "method": method, "params": parameters });
        self.stream.write_all(request.to_string().as_bytes()).map_err(CtlError::Gone)?;
        let answer = self.receive()?;
        let nonsense = |error: serde_json::Error| CtlError::Answer(error.to_string());
        let mut answer: Value = serde_json::from_slice(&answer).map_err(nonsense)?;
        if let Some(error) = answer.get("error") {
            let code = error["code"].as_i64().unwrap_or_default();
            let message = error["message"].as_str().unwrap_or("it says not why").to_owned();
            return Err(CtlError::Refused { code, message });
        }
        if answer["id"] != self.number {
            return Err(CtlError::Answer("it is not for what was asked".into()));
        }
        Ok(answer["result"].take())
    }

    fn receive(&mut self) -> Result<Vec<u8>, CtlError> {
        let mut piece = vec![0; 64 << 10];
        loop {
            let nonsense = |error: FrameError| CtlError::Answer(error.to_string());
            if let Some(answer) = self.framer.take().map_err(nonsense)? {
                return Ok(answer);
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(CtlError::Gone(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.framer.push(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CtlError::Gone(error)),
            }
        }
    }
}
