//! Capsules in words: what the NVMe types say of themselves.
use ironside_common::nvme::fabrics::ConnectData;
use ironside_common::nvme::{Command, Completion, FabricsType, QueueKind};
use zerocopy::FromBytes;

/// A command capsule; `None` if it is too short to be one.
pub(super) fn command(bytes: &[u8], queue: QueueKind) -> Option<String> {
    let command = Command::from_capsule(bytes)?;
    let mut text = command.on(queue).to_string();
    let data = &bytes[Command::SIZE..];
    if !data.is_empty() {
        text.push_str(&format!(", {} bytes in the capsule", data.len()));
    }
    if let Some(connect) = connect_data(&command, data) {
        text.push_str(&format!(": {connect}"));
    }
    Some(text)
}

/// A response capsule; `None` if it is too short to be one.
pub(super) fn response(bytes: &[u8]) -> Option<String> {
    Completion::from_capsule(bytes).map(|completion| completion.to_string())
}

/// A message as a Send brought it.
pub(super) fn message(bytes: &[u8], is_response: bool, queue: QueueKind, invalidates: Option<u32>) -> String {
    let said = if is_response { response(bytes) } else { command(bytes, queue) };
    let mut text = said.unwrap_or_else(|| match bytes.len() {
        0 => "empty: ready to receive".into(),
        length => format!("{length} bytes, no capsule"),
    });
    if let Some(key) = invalidates {
        text.push_str(&format!(", invalidates key {key:#010x}"));
    }
    text
}

/// What a Connect brings within its capsule.
fn connect_data(command: &Command, data: &[u8]) -> Option<ConnectData> {
    let is_connect = command.fabrics_type() == Some(FabricsType::CONNECT);
    is_connect.then(|| ConnectData::read_from_prefix(data).ok()).flatten().map(|(data, _)| data)
}
