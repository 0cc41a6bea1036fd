//! Why a request is refused: SPDK's codes, which are those of JSON-RPC or a negative errno, and words which say more than its.
use nix::errno::Errno;
use serde_json::{Value, json};

use crate::backend::OpenError;
use crate::control::draft::DraftError;
use crate::control::media::MediaError;
use crate::control::prepare::PrepareError;

/// What the answer to a refused request says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
}

impl RpcError {
    /// It is not JSON (JSON-RPC 2.0, section 5.1, as all codes that are no errno).
    pub fn parse(message: impl Into<String>) -> Self {
        Self { code: -32700, message: message.into() }
    }

    /// It is no request.
    pub fn request(message: impl Into<String>) -> Self {
        Self { code: -32600, message: message.into() }
    }

    pub fn method(name: &str) -> Self {
        Self {
            code: -32601,
            message: format!("Method not found: {name}; rpc_get_methods lists those there are"),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into() }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: -32603, message: message.into() }
    }

    pub fn errno(errno: Errno, message: impl Into<String>) -> Self {
        Self { code: -i64::from(errno as i32), message: message.into() }
    }

    pub fn to_json(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }
}

impl From<DraftError> for RpcError {
    fn from(error: DraftError) -> Self {
        let message = error.to_string();
        match error {
            DraftError::NoBdev(_) => Self::errno(Errno::ENODEV, message),
            DraftError::BdevThere(_) => Self::errno(Errno::EEXIST, message),
            _ => Self::invalid(message),
        }
    }
}

/// The errno that says why a configuration cannot be served, if it is the system's.
pub(super) fn errno_of(error: &PrepareError) -> Option<Errno> {
    let of = |error: &std::io::Error| error.raw_os_error().map(Errno::from_raw);
    match error {
        PrepareError::Media(MediaError::Missing { .. }) => Some(Errno::ENOENT),
        PrepareError::Media(MediaError::OtherSize { .. }) => Some(Errno::EINVAL),
        PrepareError::Media(MediaError::Create { source, .. }) => of(source),
        PrepareError::Media(MediaError::Open(error)) => match error {
            OpenError::Open { source, .. } => of(source),
            OpenError::NotWritable { .. } => Some(Errno::EACCES),
            OpenError::InUse { .. } => Some(Errno::EBUSY),
            OpenError::Size { .. } => Some(Errno::ENOMEM),
            _ => Some(Errno::EINVAL),
        },
        PrepareError::SameMedium(_) => Some(Errno::EBUSY),
        _ => None,
    }
}
