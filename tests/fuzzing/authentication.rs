//! Authentication: two machines which do not know each other's secrets, and a peer who cuts, changes, repeats and invents
//! messages. Neither may ever believe the other.
use std::sync::Arc;

use ironside_common::auth::{
    Controller, Group, Hash, Host, Keys, MESSAGE_MAX, Next, Policy, Progress, Randomness, Received, Secret,
};
use ironside_common::nvme::Nqn;

use super::Choices;

/// See the module's description.
pub fn messages(data: &[u8]) {
    let mut choices = Choices::new(data);
    // Diffie-Hellman takes long: seldom.
    let group = if choices.byte() == 0x5A { Group::Ffdhe2048 } else { Group::Null };
    let hash = Hash::ALL[choices.below(3) as usize];
    let mut pair = Pair::new(hash, group, choices.coin());
    while !choices.is_empty() {
        match choices.below(8) {
            0 => pair.ask(choices.below(2048) as usize),
            1 => pair.host.received(&invented(&mut choices)),
            2 => pair.send(&invented(&mut choices)),
            3 if choices.byte() == 0 => pair = Pair::new(hash, group, choices.coin()),
            _ => pair.step(&mut choices),
        }
        assert_ne!(pair.host.next(), Next::Authenticated, "the host believed who does not know the secret");
    }
}

struct Pair {
    host: Host,
    controller: Controller,
    random: Counting,
}

impl Pair {
    fn new(hash: Hash, group: Group, proves_itself: bool) -> Self {
        let nqn = |text: &str| text.parse::<Nqn>().expect("a name");
        let (host, subsystem) = (nqn("nqn.2014-08.org.example:host"), nqn("nqn.2014-08.org.example:sub"));
        let secret = |number| Secret::generate(Some(Hash::Sha256), 32, &mut Counting(number));
        let keys = Keys { host: secret(1), controller: Some(secret(2)) };
        let controller = proves_itself.then(|| secret(4));
        let policy = Policy { host: secret(3), controller, hashes: vec![hash], groups: vec![group] };
        Self {
            host: Host::new(host, subsystem, Arc::new(keys), 7),
            controller: Controller::new(host, subsystem, Arc::new(policy)),
            random: Counting(5),
        }
    }

    /// What the host would do next, by a messenger who may change what is said.
    fn step(&mut self, choices: &mut Choices<'_>) {
        match self.host.next() {
            Next::Send(mut message) => {
                tamper(choices, &mut message);
                self.send(&message);
                self.host.sent();
            }
            Next::Receive(room) => {
                if let Ok((mut message, progress)) = self.controller.on_receive(room as usize) {
                    judge(progress);
                    tamper(choices, &mut message);
                    self.host.received(&message);
                }
            }
            Next::Compute => {
                if let Some(job) = self.host.take_job() {
                    self.host.computed(job.run(&mut self.random));
                }
            }
            Next::Authenticated | Next::Failed(_) => {}
        }
    }

    fn send(&mut self, message: &[u8]) {
        match self.controller.on_send(message) {
            Received::Answer(progress) => judge(progress),
            Received::Compute(job) => judge(self.controller.computed(job.run(&mut self.random))),
        }
    }

    fn ask(&mut self, room: usize) {
        if let Ok((message, progress)) = self.controller.on_receive(room) {
            assert!(message.len() <= room, "it does not fit");
            judge(progress);
        }
    }
}

fn judge(progress: Progress) {
    assert!(
        !matches!(progress, Progress::Authenticated(..)),
        "the controller believed who does not know the secret"
    );
}

/// A message of the choices' own: type and identifier mostly of those there are.
fn invented(choices: &mut Choices<'_>) -> Vec<u8> {
    const KINDS: [[u8; 2]; 8] = [[0, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xF0], [0, 0xF1], [9, 9]];
    let kind = KINDS[choices.below(8) as usize];
    let length = choices.below(MESSAGE_MAX as u32 / 8) as usize;
    let mut message: Vec<u8> = kind.into_iter().chain((0..length).map(|_| choices.byte())).collect();
    // The transaction is no secret.
    if choices.coin() && message.len() > 5 {
        message[4..6].copy_from_slice(&7_u16.to_le_bytes());
    }
    message
}

fn tamper(choices: &mut Choices<'_>, message: &mut Vec<u8>) {
    match choices.below(4) {
        0 => {
            let at = choices.below(message.len() as u32) as usize;
            message[at] ^= choices.byte();
        }
        1 => message.truncate(choices.below(message.len() as u32 + 1) as usize),
        _ => {}
    }
}

/// Not by chance, so that what goes wrong goes wrong again.
struct Counting(u8);

impl Randomness for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(5).wrapping_add(3);
            *byte = self.0;
        }
    }
}
