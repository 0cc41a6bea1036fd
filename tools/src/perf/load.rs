//! A closed loop of requests: so many are outstanding until the time is over. It lives in the reactor like any
//! export, so nothing stands between it and the volume.
use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use ironside_common::memory::{Lease, Own, Pages};
use ironside_common::time::Time;
use ironside_common::verbs::{Sge, Token};
use ironside_initiator::attach::{Context, Export, Site};
use ironside_initiator::volume::{Completed, Operation, Request};

use super::pattern::{self, Mismatch};

/// Latencies are recorded up to this.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// With three significant digits.
const PRECISION: u8 = 3;

/// Where the next request goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Order {
    Random,
    Sequential,
}

/// What to do, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    /// Bytes of a request; whole blocks.
    pub request_size: u32,
    /// Bytes of a block of the volume.
    pub block_size: u32,
    /// Requests the region used has room for, side by side.
    pub places: u64,
    pub depth: u16,
    pub reads_percent: u8,
    pub order: Order,
    pub verify: bool,
    /// Whether buffers are the program's own.
    pub in_place: bool,
    pub duration: Duration,
    /// It ends after so many, if not before.
    pub requests: u64,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Figures {
    pub elapsed: Duration,
    /// Latencies in nanoseconds.
    pub reads: Histogram<u64>,
    pub writes: Histogram<u64>,
    pub errors: u64,
    pub mismatch: Option<Mismatch>,
}

/// See the module's description.
pub(super) struct Load {
    workload: Workload,
    slots: Vec<Slot>,
    idle: Vec<u16>,
    began: Option<Time>,
    next_place: u64,
    started: u64,
    random: u64,
    /// The last write of each place, if it is verified; zero for none.
    written: Vec<u32>,
    sequence: u32,
    scratch: Vec<u8>,
    figures: Figures,
    result: Option<SyncSender<Figures>>,
    closing: bool,
}

/// Where the data of requests lies, one at a time.
enum Buffer {
    Leased(Lease),
    InPlace { _own: Own<Pages>, sge: Sge },
}

impl Buffer {
    fn new(workload: &Workload, site: &Site<'_>) -> io::Result<Self> {
        let size = workload.request_size;
        if !workload.in_place {
            let lease = site.pool.lease(size).ok_or(io::ErrorKind::OutOfMemory)?;
            return Ok(Self::Leased(lease));
        }
        let own = Own::new(Pages::zeroed(size as usize));
        let lkey = site.memory.register(Arc::clone(own.region()));
        Ok(Self::InPlace { sge: site.memory.sge(lkey, 0, size), _own: own })
    }

    fn sge(&self) -> Sge {
        match self {
            Self::Leased(lease) => lease.sge(),
            Self::InPlace { sge, .. } => *sge,
        }
    }
}

struct Slot {
    buffer: Buffer,
    /// The request it has outstanding.
    place: Option<u64>,
    writes: bool,
    sequence: u32,
    began: Time,
}

impl Load {
    pub(super) fn new(workload: Workload, site: &Site<'_>, result: SyncSender<Figures>) -> io::Result<Self> {
        let mut slots = Vec::new();
        for _ in 0..workload.depth {
            let buffer = Buffer::new(&workload, site)?;
            slots.push(Slot { buffer, place: None, writes: false, sequence: 0, began: Time::ZERO });
        }
        let mut scratch = vec![0; workload.request_size as usize];
        let written = if workload.verify { workload.places } else { 0 };
        let written = vec![0; usize::try_from(written).map_err(io::Error::other)?];
        fill(&mut scratch, &workload, 0, 1);
        slots.iter().for_each(|slot| site.memory.write(slot.buffer.sge(), &scratch));
        let histogram = || Histogram::new_with_max(LATENCY_MAX_NS, PRECISION).map_err(io::Error::other);
        let (reads, writes) = (histogram()?, histogram()?);
        Ok(Self {
            idle: (0..workload.depth).collect(),
            workload,
            slots,
            began: None,
            next_place: 0,
            started: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            written,
            sequence: 0,
            scratch,
            figures: Figures { elapsed: Duration::ZERO, reads, writes, errors: 0, mismatch: None },
            result: Some(result),
            closing: false,
        })
    }

    fn start(&mut self, context: &mut Context<'_>, index: u16) -> bool {
        let Some(place) = self.choose() else { return false };
        let writes = self.below(100) >= u64::from(self.workload.reads_percent);
        let slot = &mut self.slots[usize::from(index)];
        if writes && self.workload.verify {
            self.sequence += 1;
            slot.sequence = self.sequence;
            fill(&mut self.scratch, &self.workload, place, self.sequence);
            context.memory.write(slot.buffer.sge(), &self.scratch);
        }
        (slot.place, slot.writes, slot.began) = (Some(place), writes, context.now);
        let request = Request {
            tag: index.into(),
            operation: if writes { Operation::Write { fua: false } } else { Operation::Read },
            offset: place * u64::from(self.workload.request_size),
            length: self.workload.request_size.into(),
            buffer: Some(slot.buffer.sge()),
        };
        let taken = context.volume.submit(request).is_ok();
        if taken {
            self.started += 1;
        } else {
            slot.place = None;
        }
        taken
    }

    /// A place nobody is reading or writing just now, if what is read is to be checked.
    fn choose(&mut self) -> Option<u64> {
        const TRIES: usize = 16;
        for _ in 0..TRIES {
            let place = match self.workload.order {
                Order::Random => self.below(self.workload.places),
                Order::Sequential => {
                    self.next_place = (self.next_place + 1) % self.workload.places;
                    self.next_place
                }
            };
            let busy = self.workload.verify && self.slots.iter().any(|slot| slot.place == Some(place));
            if !busy {
                return Some(place);
            }
        }
        None
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * u128::from(bound)) >> 64) as u64
    }

    fn check(&mut self, context: &Context<'_>, index: usize, place: u64) {
        let slot = &self.slots[index];
        let at = usize::try_from(place).unwrap_or(usize::MAX);
        if slot.writes {
            self.written[at] = slot.sequence;
            return;
        }
        let sequence = self.written[at];
        if sequence == 0 {
            return;
        }
        context.memory.read(slot.buffer.sge(), &mut self.scratch);
        let blocks = self.scratch.chunks_exact_mut(self.workload.block_size as usize);
        let first = place * u64::from(self.workload.request_size / self.workload.block_size);
        for (block, number) in blocks.zip(first..) {
            if let Err(mismatch) = pattern::check(block, number, sequence.into()) {
                self.figures.mismatch.get_or_insert(mismatch);
            }
        }
    }

    fn is_over(&self, now: Time) -> bool {
        let late = self.began.is_some_and(|began| now.since(began) >= self.workload.duration);
        late || self.started >= self.workload.requests || self.closing || self.figures.mismatch.is_some()
    }
}

impl Export for Load {
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        if self.result.is_none() {
            return false;
        }
        let began = *self.began.get_or_insert(context.now);
        if self.is_over(context.now) {
            if self.idle.len() == self.slots.len()
                && let Some(result) = self.result.take()
            {
                self.figures.elapsed = context.now.since(began);
                let empty = || Histogram::new_with_max(LATENCY_MAX_NS, PRECISION).expect("made before");
                let empty = Figures {
                    elapsed: Duration::ZERO,
                    reads: empty(),
                    writes: empty(),
                    errors: 0,
                    mismatch: None,
                };
                // Whoever wanted to know may have gone.
                let _ = result.try_send(std::mem::replace(&mut self.figures, empty));
            }
            return false;
        }
        let mut did = false;
        while context.volume.has_room()
            && let Some(index) = self.idle.pop()
        {
            if !self.start(context, index) {
                self.idle.push(index);
                break;
            }
            did = true;
        }
        did
    }

    fn completed(&mut self, context: &mut Context<'_>, completed: Completed) {
        let index = usize::try_from(completed.tag).expect("a tag of ours");
        let slot = &mut self.slots[index];
        let place = slot.place.take().expect("a request outstanding");
        let latency = u64::try_from(context.now.since(slot.began).as_nanos()).unwrap_or(u64::MAX);
        let histogram = if slot.writes { &mut self.figures.writes } else { &mut self.figures.reads };
        histogram.saturating_record(latency);
        match completed.result {
            Ok(()) if self.workload.verify => self.check(context, index, place),
            Ok(()) => {}
            Err(_) => self.figures.errors += 1,
        }
        self.idle.push(index as u16);
    }

    fn on_ring(&mut self, _context: &mut Context<'_>, _token: Token, _result: i32) {}

    fn arm(&mut self, _context: &mut Context<'_>) {}

    fn deadline(&self) -> Option<Time> {
        self.result.as_ref().and(self.began.map(|began| began + self.workload.duration))
    }

    fn close(&mut self, context: &mut Context<'_>) -> bool {
        self.closing = true;
        self.turn(context);
        self.idle.len() == self.slots.len()
    }
}

fn fill(bytes: &mut [u8], workload: &Workload, place: u64, sequence: u32) {
    let first = place * u64::from(workload.request_size / workload.block_size);
    for (block, number) in bytes.chunks_exact_mut(workload.block_size as usize).zip(first..) {
        pattern::fill(block, number, sequence.into());
    }
}
