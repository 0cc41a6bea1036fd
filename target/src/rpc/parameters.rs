//! Parameters of requests. An unknown one is an error; one which asks for what we do not have is refused by its name.
use ironside_common::nvme::Nqn;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::RpcError;

/// The one target there is, as SPDK calls it unless told otherwise.
pub(super) const TARGET: &str = "nvmf_tgt";

pub(super) fn read<T: DeserializeOwned>(parameters: Value) -> Result<T, RpcError> {
    serde_json::from_value(parameters)
        .map_err(|error| RpcError::invalid(format!("Invalid parameters: {error}")))
}

pub(super) fn none(parameters: Value) -> Result<(), RpcError> {
    match parameters.as_object().and_then(|all| all.keys().next()) {
        Some(name) => Err(RpcError::invalid(format!("Invalid parameters: there is no `{name}`"))),
        None => Ok(()),
    }
}

pub(super) fn nqn(text: &str) -> Result<Nqn, RpcError> {
    text.parse().map_err(|error| RpcError::invalid(format!("{text:?}: {error}")))
}

/// # Errors
/// If it names another target than the one there is.
pub(super) fn target(name: Option<&str>) -> Result<(), RpcError> {
    match name {
        Some(name) if name != TARGET => {
            Err(RpcError::invalid(format!("Unable to find a target named `{name}`: there is `{TARGET}`")))
        }
        _ => Ok(()),
    }
}

/// Refuses what we do not have, where something else than its being off is asked for.
///
/// # Errors
/// With the names of those which are.
pub(super) fn refuse(asked: &[(&str, bool)]) -> Result<(), RpcError> {
    let names: Vec<String> =
        asked.iter().filter(|(_, is)| *is).map(|(name, _)| format!("`{name}`")).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(RpcError::invalid(format!("{} is not offered: leave it out", names.join(", ")))),
    }
}
