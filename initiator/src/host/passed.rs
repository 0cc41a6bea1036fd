//! One command of a user's own, which the host sends once it is connected and does not look into.
use ironside_common::nvme::{Command, QueueKind};

use super::setup::Payload;

/// A command, and what it moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Passed {
    pub queue: QueueKind,
    pub command: Command,
    pub data: PassedData,
}

/// What a passed command moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PassedData {
    None,
    /// So many of these bytes go to the controller.
    Out {
        bytes: [u8; Self::OUT_MAX],
        length: usize,
    },
    /// The controller writes so many bytes, at most [`super::IDENTIFY_LENGTH`].
    In(u32),
}

impl PassedData {
    /// Most bytes which go to the controller.
    pub const OUT_MAX: usize = 16;
}

/// What the controller answered: a success.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// What it wrote.
    pub data: Vec<u8>,
}

impl Passed {
    pub(super) fn payload(&self) -> Payload {
        match self.data {
            PassedData::None => Payload::None,
            PassedData::Out { bytes, length } => Payload::Out(bytes[..length].to_vec()),
            PassedData::In(length) => Payload::In(length),
        }
    }

    pub(super) fn answer(&self, result: u64, page: &[u8]) -> Answer {
        let length = match self.data {
            PassedData::None | PassedData::Out { .. } => 0,
            PassedData::In(length) => length as usize,
        };
        Answer { result, data: page[..length].to_vec() }
    }
}
