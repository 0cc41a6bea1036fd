//! iWARP streams over byte pipes in memory, which split and delay as the choices say: the second world.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use ironside_common::iwarp::Outgoing;
use ironside_common::memory::Memory;
use ironside_common::provider::sim::Choices;
use ironside_common::provider::soft::{Dialer, Settings, Soft, Wire};
use ironside_common::time::Time;
use ironside_common::verbs::{
    Access, Address, CmRequest, ConnectParameters, Connections, Event, Exposure, HostVerbs, Limits, MrHandle,
    QpHandle, Received, Registration, Remote, Sge, TargetVerbs, Token, Verbs,
};

use super::fabric::{Fabric, Pump};

/// Bytes on their way in one direction at most: small, so that senders have to wait.
const CAPACITY: usize = 20_000;

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    sent: VecDeque<u8>,
    arrived: VecDeque<u8>,
    finished: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    directions: [Direction; 2],
    broken: bool,
    /// Ends which still exist.
    ends: u8,
}

/// One end of a pipe.
#[derive(Debug)]
pub(super) struct PipeWire {
    pipe: Rc<RefCell<Pipe>>,
    side: usize,
    segment: u32,
}

/// Connections which nobody has taken yet.
type Backlog = Rc<RefCell<VecDeque<(PipeWire, Address)>>>;

#[derive(Debug, Default)]
struct State {
    pipes: Vec<Rc<RefCell<Pipe>>>,
    listeners: Vec<Listener>,
    connects: usize,
    seed: u64,
}

#[derive(Debug)]
struct Listener {
    address: Address,
    listening: bool,
    backlog: Backlog,
}

/// All pipes of one world.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipes {
    state: Rc<RefCell<State>>,
    crc: bool,
    segment: u32,
}

impl Pipes {
    pub(super) fn new(choices: &mut impl Choices) -> Self {
        let pipes =
            Self { state: Rc::default(), crc: choices.chance(50), segment: 200 + choices.below(3000) };
        pipes.state.borrow_mut().seed = choices.below(u32::MAX).into();
        pipes
    }
}

impl Fabric for Pipes {
    type Provider = PipeProvider;

    fn provider(&mut self, address: Address, memory: &Rc<Memory>, ird: u32) -> PipeProvider {
        let backlog = Backlog::default();
        let mut state = self.state.borrow_mut();
        state.listeners.push(Listener { address, listening: false, backlog: Rc::clone(&backlog) });
        state.seed += 1;
        let reads = u16::try_from(ird).expect("read depths are small");
        let settings = Settings { crc: self.crc, reads, seed: state.seed, ..Settings::default() };
        let dialer = PipeDialer { pipes: self.clone(), address };
        PipeProvider { soft: Soft::new(Rc::clone(memory), Box::new(dialer), settings), address, backlog }
    }

    fn set_listening(&mut self, address: Address, listening: bool) {
        let mut state = self.state.borrow_mut();
        // A backlog which only this list knows belongs to a provider that is gone.
        state.listeners.retain(|listener| Rc::strong_count(&listener.backlog) > 1);
        for listener in state.listeners.iter_mut().filter(|listener| listener.address == address) {
            listener.listening = listening;
        }
    }

    fn step(&mut self, choices: &mut impl Choices) -> bool {
        let mut state = self.state.borrow_mut();
        state.pipes.retain(|pipe| pipe.borrow().ends > 0);
        let moving = |pipe: &Rc<RefCell<Pipe>>, side: usize| !pipe.borrow().directions[side].sent.is_empty();
        let ways = state.pipes.iter().flat_map(|pipe| [(pipe, 0), (pipe, 1)]);
        let ways: Vec<_> = ways.filter(|&(pipe, side)| moving(pipe, side)).collect();
        let Ok(count @ 1..) = u32::try_from(ways.len()) else { return false };
        let (pipe, side) = ways[choices.below(count) as usize];
        let direction = &mut pipe.borrow_mut().directions[side];
        let all = direction.sent.len();
        let few = 1 + choices.below(u32::try_from(all).expect("below the capacity")) as usize;
        let amount = if choices.chance(50) { all } else { few };
        let bytes: Vec<u8> = direction.sent.drain(..amount).collect();
        direction.arrived.extend(bytes);
        true
    }

    fn break_one(&mut self, choices: &mut impl Choices) {
        let state = self.state.borrow();
        let whole: Vec<_> = state.pipes.iter().filter(|pipe| !pipe.borrow().broken).collect();
        if let Ok(count @ 1..) = u32::try_from(whole.len()) {
            let mut pipe = whole[choices.below(count) as usize].borrow_mut();
            pipe.broken = true;
            for direction in &mut pipe.directions {
                direction.sent.clear();
            }
        }
    }
}

struct PipeDialer {
    pipes: Pipes,
    address: Address,
}

impl Dialer<PipeWire> for PipeDialer {
    fn dial(&mut self, to: Address) -> io::Result<PipeWire> {
        let mut state = self.pipes.state.borrow_mut();
        state.connects += 1;
        let connects = state.connects;
        let listening = state.listeners.iter().filter(|one| one.address == to && one.listening);
        let listening: Vec<_> = listening.map(|listener| Rc::clone(&listener.backlog)).collect();
        let Some(turn) = connects.checked_rem(listening.len()) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let pipe = Rc::new(RefCell::new(Pipe { ends: 2, ..Pipe::default() }));
        state.pipes.push(Rc::clone(&pipe));
        let segment = self.pipes.segment;
        let passive = PipeWire { pipe: Rc::clone(&pipe), side: 1, segment };
        listening[turn].borrow_mut().push_back((passive, self.address));
        Ok(PipeWire { pipe, side: 0, segment })
    }
}

impl Wire for PipeWire {
    fn established(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.pipe.borrow_mut();
        let broken = pipe.broken;
        let incoming = &mut pipe.directions[1 - self.side];
        if incoming.arrived.is_empty() {
            return match (broken, incoming.finished && incoming.sent.is_empty()) {
                (true, _) => Err(io::ErrorKind::ConnectionReset.into()),
                (false, true) => Ok(0),
                (false, false) => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let placed = direct.map_or(0, |sge| incoming.arrived.len().min(sge.length as usize));
        let bytes: Vec<u8> = incoming.arrived.drain(..placed).collect();
        if let Some(sge) = direct {
            memory.write(sge, &bytes);
        }
        let staged = incoming.arrived.len().min(staging.len());
        for (byte, arrived) in staging.iter_mut().zip(incoming.arrived.drain(..staged)) {
            *byte = arrived;
        }
        Ok(placed + staged)
    }

    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
        let mut pipe = self.pipe.borrow_mut();
        if pipe.broken || pipe.ends < 2 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = CAPACITY - pipe.directions[self.side].sent.len();
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = outgoing.first(room, memory);
        pipe.directions[self.side].sent.extend(&bytes);
        Ok(bytes.len())
    }

    fn finish(&mut self) {
        self.pipe.borrow_mut().directions[self.side].finished = true;
    }

    fn segment_size(&self) -> Option<u32> {
        Some(self.segment)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for PipeWire {
    fn drop(&mut self) {
        let mut pipe = self.pipe.borrow_mut();
        pipe.ends -= 1;
        pipe.directions[self.side].finished = true;
    }
}

/// The software provider of one reactor, and the connections which wait for it.
pub(super) struct PipeProvider {
    soft: Soft<PipeWire>,
    address: Address,
    backlog: Backlog,
}

impl Pump for PipeProvider {
    fn pump(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some((wire, peer)) = self.backlog.borrow_mut().pop_front() {
            self.soft.adopt(wire, peer, self.address);
            busy = true;
        }
        busy |= self.soft.pump(now);
        self.soft.flush(now) || busy
    }

    fn deadline(&self) -> Option<Time> {
        self.soft.deadline()
    }

    fn set_registration(&mut self, registration: Registration) {
        self.soft.set_registration(registration);
    }

    fn exposes(&self, lkey: u32) -> bool {
        self.soft.exposes(lkey)
    }
}

impl Verbs for PipeProvider {
    fn limits(&self, qp: QpHandle) -> Limits {
        self.soft.limits(qp)
    }

    fn poll(&mut self) -> Option<Event> {
        self.soft.poll()
    }

    fn message(&self, received: &Received) -> &[u8] {
        self.soft.message(received)
    }

    fn message_sge(&self, received: &Received, offset: u32) -> Sge {
        self.soft.message_sge(received, offset)
    }

    fn repost(&mut self, received: Received) {
        self.soft.repost(received);
    }
}

impl TargetVerbs for PipeProvider {
    fn post_fetch(&mut self, qp: QpHandle, token: Token, from: Remote, into: Sge) {
        self.soft.post_fetch(qp, token, from, into);
    }

    fn post_respond(
        &mut self,
        qp: QpHandle,
        token: Token,
        data: Option<(Sge, Remote)>,
        response: &[u8; 16],
        invalidate: Option<u32>,
    ) {
        self.soft.post_respond(qp, token, data, response, invalidate);
    }
}

impl HostVerbs for PipeProvider {
    fn allocate_mr(&mut self, qp: QpHandle) -> MrHandle {
        self.soft.allocate_mr(qp)
    }

    fn prepare(&mut self, qp: QpHandle, mr: MrHandle, sge: Sge, access: Access) -> Exposure {
        self.soft.prepare(qp, mr, sge, access)
    }

    fn post_command(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    ) {
        self.soft.post_command(qp, token, command, data, expose);
    }

    fn post_invalidate(&mut self, qp: QpHandle, token: Token, key: u32) {
        self.soft.post_invalidate(qp, token, key);
    }
}

impl Connections for PipeProvider {
    fn accept(&mut self, request: CmRequest, parameters: ConnectParameters, private_data: &[u8]) {
        self.soft.accept(request, parameters, private_data);
    }

    fn reject(&mut self, request: CmRequest, private_data: &[u8]) {
        self.soft.reject(request, private_data);
    }

    fn connect(&mut self, to: Address, parameters: ConnectParameters, private_data: &[u8]) -> QpHandle {
        self.soft.connect(to, parameters, private_data)
    }

    fn disconnect(&mut self, qp: QpHandle) {
        self.soft.disconnect(qp);
    }

    fn catch_up(&mut self, qp: QpHandle) {
        self.soft.catch_up(qp);
    }

    fn has_caught_up(&self, qp: QpHandle) -> bool {
        self.soft.has_caught_up(qp)
    }

    fn destroy(&mut self, qp: QpHandle) {
        self.soft.destroy(qp);
    }
}
