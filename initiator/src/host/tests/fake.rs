//! A provider and a target in one, as small as they can be: commands are executed when the test says so, and
//! the target can be told to lie.
use std::collections::VecDeque;
use std::rc::Rc;

use ironside_common::memory::Memory;
use ironside_common::nvme::{Command, Completion, DataPointer, Status};
use ironside_common::verbs::Address;
use ironside_common::verbs::*;

/// What the provider was asked to send.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub qp: QpHandle,
    pub command: Command,
    pub in_capsule: Vec<u8>,
    pub exposure: Option<Exposure>,
}

#[derive(Debug, Default)]
struct Pair {
    number: u16,
    regions: u16,
    /// Buffers the peer may touch now.
    exposed: Vec<Exposure>,
    broken: bool,
    lent: usize,
}

#[derive(Debug)]
pub(super) struct Fake {
    pub memory: Rc<Memory>,
    pub events: VecDeque<Event>,
    /// Commands sent and not yet taken by the target.
    pub posted: VecDeque<Posted>,
    /// Connects asked for: their private data.
    pub dialled: VecDeque<(QpHandle, Vec<u8>)>,
    /// Whether Sends complete by themselves.
    pub sends_complete: bool,
    /// Send completions kept back.
    pub unsent: VecDeque<Wc>,
    messages: Vec<Vec<u8>>,
    pairs: Vec<Pair>,
    pairs_made: u16,
    next_key: u32,
    pub invalidations: usize,
    pub registration: Registration,
}

impl Fake {
    pub(super) fn new(memory: Rc<Memory>) -> Self {
        Self {
            memory,
            events: VecDeque::new(),
            posted: VecDeque::new(),
            dialled: VecDeque::new(),
            sends_complete: true,
            unsent: VecDeque::new(),
            messages: Vec::new(),
            pairs: Vec::new(),
            pairs_made: 0,
            next_key: 0x100,
            invalidations: 0,
            registration: Registration::Window,
        }
    }

    pub(super) fn establish(&mut self, qp: QpHandle) {
        let private_data = [0; 32].as_slice().try_into().unwrap();
        self.events.push_back(Event::Connection(Box::new(CmEvent::Established { qp, private_data })));
    }

    pub(super) fn refuse(&mut self, qp: QpHandle, reason: RejectReason) {
        self.pairs.retain(|pair| pair.number != qp.0);
        self.events.push_back(Event::Connection(Box::new(CmEvent::Refused { qp, reason })));
    }

    /// The target answers; `invalidate` as the key of a Send with Invalidate.
    pub(super) fn respond(&mut self, qp: QpHandle, response: &[u8], invalidate: Option<u32>) {
        let pair = self.pair(qp);
        if pair.broken {
            return;
        }
        pair.exposed.retain(|exposure| Some(exposure.remote.rkey) != invalidate);
        pair.lent += 1;
        let buffer = u32::try_from(self.messages.len()).unwrap();
        let length = u32::try_from(response.len()).unwrap();
        self.messages.push(response.to_vec());
        self.events.push_back(Event::Received(Received { qp, buffer, length, invalidated: invalidate }));
    }

    /// The bytes of a command's data from the host.
    pub(super) fn data_from_host(&self, posted: &Posted) -> Vec<u8> {
        match DataPointer::parse(&posted.command, posted.in_capsule.len() as u32).unwrap() {
            DataPointer::None => Vec::new(),
            DataPointer::InCapsule { offset, length } => {
                posted.in_capsule[offset as usize..][..length as usize].to_vec()
            }
            DataPointer::Keyed { remote, length, .. } => {
                let sge = self.exposed(posted.qp, remote, length, Access::RemoteRead);
                let mut bytes = vec![0; length as usize];
                self.memory.read(sge, &mut bytes);
                bytes
            }
        }
    }

    /// Writes a command's data to the host.
    pub(super) fn data_to_host(&self, posted: &Posted, bytes: &[u8]) {
        let DataPointer::Keyed { remote, length, invalidate: true } =
            DataPointer::parse(&posted.command, 0).unwrap()
        else {
            panic!("data to the host goes by a key: {:?}", posted.command)
        };
        let sge = self.exposed(posted.qp, remote, length, Access::RemoteWrite);
        self.memory.write(sge, &bytes[..bytes.len().min(length as usize)]);
    }

    /// The connection ends, whoever did it; all work comes back.
    pub(super) fn break_pair(&mut self, qp: QpHandle) {
        let pair = self.pair(qp);
        if std::mem::replace(&mut pair.broken, true) {
            return;
        }
        pair.exposed.clear();
        self.posted.retain(|posted| posted.qp != qp);
        for wc in std::mem::take(&mut self.unsent) {
            if wc.qp == qp {
                self.events.push_back(Event::Completed(Wc { status: WcStatus::Flushed, ..wc }));
            } else {
                self.unsent.push_back(wc);
            }
        }
        let reason = "broken by the test".to_owned();
        self.events.push_back(Event::Connection(Box::new(CmEvent::Disconnected { qp, reason })));
    }

    pub(super) fn pairs(&self) -> Vec<QpHandle> {
        self.pairs.iter().map(|pair| QpHandle(pair.number)).collect()
    }

    /// Buffers any peer may touch now.
    pub(super) fn exposed_now(&self) -> usize {
        self.pairs.iter().map(|pair| pair.exposed.len()).sum()
    }

    fn exposed(&self, qp: QpHandle, remote: Remote, length: u32, access: Access) -> Sge {
        let pair = self.pairs.iter().find(|pair| pair.number == qp.0).unwrap();
        let exposure = pair.exposed.iter().find(|exposure| exposure.remote == remote);
        let exposure = exposure.expect("the target uses what was lent");
        assert_eq!((exposure.access, exposure.sge.length), (access, length));
        exposure.sge
    }

    fn pair(&mut self, qp: QpHandle) -> &mut Pair {
        self.pairs.iter_mut().find(|pair| pair.number == qp.0).unwrap()
    }

    fn complete(&mut self, qp: QpHandle, token: Token) {
        let broken = self.pair(qp).broken;
        let wc = Wc { qp, token, status: if broken { WcStatus::Flushed } else { WcStatus::Success } };
        if broken || self.sends_complete || token.kind == Kind::Invalidate {
            self.events.push_back(Event::Completed(wc));
        } else {
            self.unsent.push_back(wc);
        }
    }
}

/// A response capsule.
pub(super) fn response(cid: u16, sqid: u16, sqhd: u16, value: u64, status: Status) -> [u8; 16] {
    Completion::new(value, sqhd, sqid, cid, status).to_bytes()
}

impl Verbs for Fake {
    fn limits(&self, _qp: QpHandle) -> Limits {
        Limits { send_queue: u32::MAX, reads: 0 }
    }

    fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn message(&self, received: &Received) -> &[u8] {
        &self.messages[received.buffer as usize]
    }

    fn message_sge(&self, _received: &Received, _offset: u32) -> Sge {
        unreachable!("a host reads responses where they are")
    }

    fn repost(&mut self, received: Received) {
        self.pair(received.qp).lent -= 1;
    }
}

impl HostVerbs for Fake {
    fn allocate_mr(&mut self, qp: QpHandle) -> MrHandle {
        let pair = self.pair(qp);
        pair.regions += 1;
        MrHandle(pair.regions - 1)
    }

    fn prepare(&mut self, _qp: QpHandle, mr: MrHandle, sge: Sge, access: Access) -> Exposure {
        self.next_key += 1;
        let remote = Remote { address: sge.address ^ 0xFFFF, rkey: self.next_key };
        Exposure { mr, sge, access, remote, registration: self.registration }
    }

    fn post_command(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    ) {
        // What this stand-in allocates is not the host's doing.
        allocation_counter::opt_out(|| self.send(qp, token, command, data, expose));
    }

    fn post_invalidate(&mut self, qp: QpHandle, token: Token, key: u32) {
        self.invalidations += 1;
        self.pair(qp).exposed.retain(|exposure| exposure.remote.rkey != key);
        allocation_counter::opt_out(|| self.complete(qp, token));
    }
}

impl Fake {
    fn send(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    ) {
        let mut in_capsule = vec![0; data.map_or(0, |sge| sge.length as usize)];
        if let Some(sge) = data {
            self.memory.read(sge, &mut in_capsule);
        }
        let pair = self.pair(qp);
        if !pair.broken {
            if let Some(exposure) = expose {
                let free = pair.exposed.iter().all(|other| other.mr != exposure.mr);
                assert!(free && exposure.mr.0 < pair.regions, "a memory region used twice");
                pair.exposed.push(exposure);
            }
            let command = Command::from_capsule(command).unwrap();
            self.posted.push_back(Posted { qp, command, in_capsule, exposure: expose });
        }
        self.complete(qp, token);
    }
}

impl Connections for Fake {
    fn accept(&mut self, _request: CmRequest, _parameters: ConnectParameters, _private_data: &[u8]) {
        unreachable!("a host accepts nothing")
    }

    fn reject(&mut self, _request: CmRequest, _private_data: &[u8]) {}

    fn connect(&mut self, _to: Address, _parameters: ConnectParameters, private_data: &[u8]) -> QpHandle {
        self.pairs.push(Pair { number: self.pairs_made, ..Pair::default() });
        self.pairs_made += 1;
        let qp = QpHandle(self.pairs_made - 1);
        self.dialled.push_back((qp, private_data.to_vec()));
        qp
    }

    fn disconnect(&mut self, qp: QpHandle) {
        if self.pairs.iter().any(|pair| pair.number == qp.0) {
            self.break_pair(qp);
        }
    }

    fn destroy(&mut self, qp: QpHandle) {
        let work = |event: &Event| matches!(event, Event::Completed(wc) if wc.qp == qp);
        assert!(!self.events.iter().any(work), "destroyed with work in flight");
        let pair = self.pair(qp);
        assert!(pair.broken && pair.lent == 0, "destroyed too early");
        self.pairs.retain(|pair| pair.number != qp.0);
        self.events.retain(|event| !matches!(event, Event::Received(received) if received.qp == qp));
    }
}
