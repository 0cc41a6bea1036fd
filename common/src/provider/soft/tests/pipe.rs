//! Byte pipes in memory: they split, delay and break as their choices say, and behave
//! as sockets do at the end: who closes with bytes unread destroys those still under way to the peer.
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use slab::Slab;

use crate::iwarp::Outgoing;
use crate::memory::Memory;
use crate::provider::sim::{Choices, Prng};
use crate::provider::soft::{Dialer, Wire};
use crate::verbs::{Address, Sge};

/// Bytes a pipe holds one way.
const CAPACITY: usize = 256 * 1024;
/// How often, of a hundred times, nothing moves though it could.
const STALLS: u32 = 20;

/// The pipes of one world.
#[derive(Clone)]
pub(super) struct Pipes {
    state: Rc<RefCell<State>>,
}

struct State {
    choices: Prng,
    pipes: Slab<Pipe>,
    /// Who came to each listening address and was not accepted yet.
    listening: BTreeMap<Address, VecDeque<(PipeWire, Address)>>,
}

/// Both directions of one connection; side 0 dialled.
#[derive(Default)]
struct Pipe {
    /// Under way to each side.
    flying: [VecDeque<u8>; 2],
    /// Whether each side will send nothing more, and whether it has closed.
    finished: [bool; 2],
    closed: [bool; 2],
    broken: bool,
}

impl Pipes {
    pub(super) fn new(seed: u64) -> Self {
        let state = State { choices: Prng::new(seed), pipes: Slab::new(), listening: BTreeMap::new() };
        Self { state: Rc::new(RefCell::new(state)) }
    }

    /// From now on connections to `address` succeed.
    pub(super) fn listen(&self, address: Address) {
        self.state.borrow_mut().listening.entry(address).or_default();
    }

    /// The next one who came to `address`.
    pub(super) fn accept(&self, address: Address) -> Option<(PipeWire, Address)> {
        self.state.borrow_mut().listening.get_mut(&address)?.pop_front()
    }

    /// Somebody at `from` who connects elsewhere.
    pub(super) fn dialer(&self, from: Address) -> PipeDialer {
        PipeDialer { pipes: self.clone(), from }
    }

    /// Breaks one of the pipes there are.
    pub(super) fn break_one(&self, choices: &mut impl Choices) {
        let mut state = self.state.borrow_mut();
        let standing = state.pipes.iter().filter(|(_, pipe)| !pipe.broken).count();
        if let Some(chosen) = u32::try_from(standing).ok().filter(|&standing| standing > 0) {
            let chosen = choices.below(chosen);
            let standing = state.pipes.iter_mut().filter(|(_, pipe)| !pipe.broken);
            for (_, pipe) in standing.zip(0..).filter(|&(_, index)| index == chosen).map(|(entry, _)| entry) {
                pipe.broken = true;
            }
        }
    }

    /// Pipes which are not closed on both sides.
    pub(super) fn open(&self) -> usize {
        self.state.borrow().pipes.len()
    }
}

/// Connects through [`Pipes`].
pub(super) struct PipeDialer {
    pipes: Pipes,
    from: Address,
}

impl Dialer<PipeWire> for PipeDialer {
    fn dial(&mut self, to: Address) -> io::Result<PipeWire> {
        let mut state = self.pipes.state.borrow_mut();
        if !state.listening.contains_key(&to) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let id = state.pipes.insert(Pipe::default());
        let wire = |side| PipeWire { pipes: self.pipes.clone(), id, side };
        state.listening.entry(to).or_default().push_back((wire(1), self.from));
        Ok(wire(0))
    }
}

/// One end of a pipe.
pub(super) struct PipeWire {
    pipes: Pipes,
    id: usize,
    side: usize,
}

impl State {
    fn stalls(&mut self) -> bool {
        self.choices.chance(STALLS)
    }

    /// How much of `most` moves now: often little, often all.
    fn share(&mut self, most: usize) -> usize {
        if most == 0 || self.choices.chance(50) {
            return most;
        }
        let bound = u32::try_from(most).unwrap_or(u32::MAX);
        1 + usize::try_from(self.choices.below(bound)).unwrap_or(0)
    }
}

impl Wire for PipeWire {
    fn established(&mut self) -> io::Result<bool> {
        Ok(!self.pipes.state.borrow_mut().stalls())
    }

    fn receive(&mut self, memory: &Memory, direct: Option<Sge>, staging: &mut [u8]) -> io::Result<usize> {
        let mut state = self.pipes.state.borrow_mut();
        if state.stalls() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let pipe = &state.pipes[self.id];
        if pipe.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let there = pipe.flying[self.side].len();
        if there == 0 {
            let ended = pipe.finished[1 - self.side] || pipe.closed[1 - self.side];
            return if ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let room = direct.map_or(0, |direct| direct.length as usize) + staging.len();
        let moved = state.share(there.min(room));
        let mut bytes: VecDeque<u8> = state.pipes[self.id].flying[self.side].drain(..moved).collect();
        let bytes = bytes.make_contiguous();
        let placed = direct.map_or(0, |direct| moved.min(direct.length as usize));
        if let Some(direct) = direct {
            memory.write(direct, &bytes[..placed]);
        }
        staging[..moved - placed].copy_from_slice(&bytes[placed..]);
        Ok(moved)
    }

    fn send(&mut self, memory: &Memory, outgoing: &Outgoing) -> io::Result<usize> {
        let mut state = self.pipes.state.borrow_mut();
        let pipe = &state.pipes[self.id];
        if pipe.broken || pipe.closed[1 - self.side] {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = CAPACITY - pipe.flying[1 - self.side].len();
        if room == 0 || state.stalls() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let moved = state.share(room.min(outgoing.len()));
        state.pipes[self.id].flying[1 - self.side].extend(outgoing.first(moved, memory));
        Ok(moved)
    }

    fn finish(&mut self) {
        self.pipes.state.borrow_mut().pipes[self.id].finished[self.side] = true;
    }

    fn segment_size(&self) -> Option<u32> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for PipeWire {
    fn drop(&mut self) {
        let mut state = self.pipes.state.borrow_mut();
        let pipe = &mut state.pipes[self.id];
        pipe.closed[self.side] = true;
        if !pipe.flying[self.side].is_empty() {
            pipe.broken = true;
        }
        if pipe.closed == [true; 2] {
            state.pipes.remove(self.id);
        }
    }
}
