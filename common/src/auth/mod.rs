//! DH-HMAC-CHAP (NVM Express base specification 2.2, 8.3.4.5): how host and controller prove to each other that they
//! know a secret. Two machines, one for each role, take messages and return messages. What takes long or needs
//! chance is a [`Job`], which whoever drives them runs wherever it may take its time.
mod computing;
mod controller;
mod group;
mod hash;
mod host;
mod job;
mod message;
mod secret;
#[cfg(test)]
mod tests;

pub use self::computing::Computing;
pub use self::controller::{Controller, Failure, NoRoom, Policy, Progress, Received};
pub use self::group::{Group, GroupError};
pub use self::hash::{Hash, HashError};
pub use self::host::{Host, HostError, Keys, Next};
pub use self::job::{Job, Outcome};
pub use self::message::{Explanation, MESSAGE_MAX};
pub use self::secret::{Secret, SecretError, SecretFileError};

/// What Authentication Send and Authentication Receive say of their data: SECP, and SPSP1 with SPSP0 (NVM Express base
/// specification 2.2, 6.1 and 6.2).
pub const SECURITY_PROTOCOL: u8 = 0xE9;
pub const PROTOCOL_SPECIFIC: u16 = 0x0101;

/// Where the values come from which nobody may guess. Only the simulator has another source than the system.
pub trait Randomness {
    fn fill(&mut self, bytes: &mut [u8]);
}

/// The system's randomness.
#[derive(Clone, Copy, Debug)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&mut self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("a system without randomness cannot keep a secret");
    }
}
