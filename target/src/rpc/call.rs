//! From the text of a request to that of its answer (JSON-RPC 2.0).
use serde_json::{Map, Value, json};

use super::methods::{Method, method};
use super::{RpcError, Subject};

/// Requests in one list.
const BATCH_MAX: usize = 1024;

/// Does what a request says, or each of a list. Nothing if nobody wants an answer.
pub fn answer(text: &[u8], subject: &mut dyn Subject) -> Option<Vec<u8>> {
    let response = match serde_json::from_slice(text) {
        Err(error) => Some(refused(Value::Null, &RpcError::parse(format!("not JSON: {error}")))),
        Ok(Value::Array(batch)) if batch.is_empty() || batch.len() > BATCH_MAX => {
            let message = format!("a list has 1 to {BATCH_MAX} requests");
            Some(refused(Value::Null, &RpcError::request(message)))
        }
        Ok(Value::Array(batch)) => {
            let answers: Vec<Value> = batch.into_iter().filter_map(|one| single(one, subject)).collect();
            (!answers.is_empty()).then_some(Value::Array(answers))
        }
        Ok(one) => single(one, subject),
    };
    response.map(|response| format!("{response}\n").into_bytes())
}

struct Request {
    method: String,
    parameters: Value,
}

fn single(request: Value, subject: &mut dyn Subject) -> Option<Value> {
    let Value::Object(mut request) = request else {
        return Some(refused(Value::Null, &RpcError::request("a request is a JSON object")));
    };
    let id = match request.remove("id") {
        Some(id @ (Value::String(_) | Value::Number(_) | Value::Null)) => Some(id),
        None => None,
        Some(_) => {
            return Some(refused(Value::Null, &RpcError::request("`id` is a string or a number")));
        }
    };
    let result = read(request).and_then(|request| execute(&request.method, request.parameters, subject));
    let id = id?;
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => refused(id, &error),
    })
}

fn refused(id: Value, error: &RpcError) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": error.to_json() })
}

/// The version may be missing, as SPDK has it.
fn read(mut request: Map<String, Value>) -> Result<Request, RpcError> {
    if request.remove("jsonrpc").is_some_and(|version| version != "2.0") {
        return Err(RpcError::request("`jsonrpc` is \"2.0\""));
    }
    let Some(Value::String(method)) = request.remove("method") else {
        return Err(RpcError::request("a request has a `method`, a string"));
    };
    let parameters = match request.remove("params") {
        None | Some(Value::Null) => json!({}),
        Some(parameters @ Value::Object(_)) => parameters,
        Some(_) => return Err(RpcError::invalid("`params` is an object: parameters go by their names")),
    };
    match request.keys().next() {
        Some(unknown) => Err(RpcError::request(format!("`{unknown}` is no part of a request"))),
        None => Ok(Request { method, parameters }),
    }
}

/// Does one thing.
///
/// # Errors
/// Why it is not done.
pub(super) fn execute(name: &str, parameters: Value, subject: &mut dyn Subject) -> Result<Value, RpcError> {
    match method(name).ok_or_else(|| RpcError::method(name))? {
        Method::Look(look) => look(subject, parameters),
        Method::Edit(edit) => {
            let mut result = Value::Null;
            let applied = subject.change(&mut |draft| {
                result = edit(draft, parameters.clone())?;
                Ok(())
            })?;
            tracing::info!("{name}: {}", crate::control::reload::summary(&applied.changes));
            Ok(result)
        }
    }
}
