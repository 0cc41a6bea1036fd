//! One host of a world: the initiator's machines, one for each path, and a workload which knows what every answer may be.
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ironside_common::memory::{Lease, Memory, Own, Pages, Pool, SizeClass};
use ironside_common::nvme::{Nqn, Status, StatusType};
use ironside_common::provider::sim::Choices;
use ironside_common::time::Time;
use ironside_common::verbs::{Address, Registration, Sge, Verbs};
use ironside_initiator::host::{HostEvent, HostOptions};
use ironside_initiator::paths::{Paths, Policy};
use ironside_initiator::volume::{Completed, IoError, Operation, Request, State};
use uuid::Uuid;

use super::BLOCK_SIZE;
use super::fabric::{Fabric, Pump};
use super::shadow::{Flush, Shadow, Write};

/// Hosts of this kind there are at most.
pub(super) const HOSTS_MAX: u8 = 2;
/// Bytes one command moves at most.
const MAX_TRANSFER: u32 = 8192;
/// Blocks of the largest request, more than one command moves.
const BLOCKS_MAX: u32 = 40;

pub(super) struct HostSide<F: Fabric> {
    number: u8,
    host: Paths,
    provider: F::Provider,
    memory: Rc<Memory>,
    pool: Rc<Pool>,
    /// Whether requests bring memory of their own, which is registered where it lies and gone with them.
    in_place: bool,
    /// Whether a few blocks are written again and again, so that an old write has a newer one to ruin.
    rewrites: bool,
    outstanding: BTreeMap<u64, Outstanding>,
    next_tag: u64,
    /// It is not admitted any more.
    pub(super) is_expelled: bool,
    /// Requests which ended well.
    pub(super) succeeded: u64,
    pub(super) failed: u64,
}

/// The identifier of the host of this number.
pub(super) fn id(number: u8) -> Uuid {
    Uuid::from_u128(u128::from(number) + 1)
}

struct Outstanding {
    disk: usize,
    what: What,
    buffer: Option<Buffer>,
}

enum Buffer {
    Leased(Lease),
    InPlace { _own: Own<Pages>, sge: Sge },
}

impl Buffer {
    fn sge(&self) -> Sge {
        match self {
            Self::Leased(lease) => lease.sge(),
            Self::InPlace { sge, .. } => *sge,
        }
    }
}

enum What {
    Read(Range<usize>),
    Write { write: Write, durable: bool, hint: bool },
    Flush(Flush),
}

impl<F: Fabric> HostSide<F> {
    pub(super) fn new(
        fabric: &mut F,
        number: u8,
        targets: &[Address],
        nqn: Nqn,
        now: Time,
        choices: &mut impl Choices,
    ) -> Self {
        let memory = Memory::new();
        let classes = [SizeClass { size: 24 << 10, count: 16 }];
        let pool = Pool::new(&memory, &classes).expect("address space is plenty");
        let address = Address::from(([192, 0, 2, 100 + number], 1));
        let mut provider = fabric.provider(address, &memory, 1 + choices.below(8));
        provider.set_registration(match choices.below(4) {
            0 => Registration::Pool,
            1 => Registration::Dynamic,
            _ => Registration::Window,
        });
        let (id, host_nqn) = (id(number), super::host_nqn(id(number)));
        let options = HostOptions {
            nr_io_queues: 1 + choices.below(3) as u16,
            queue_size: 16 + choices.below(2) as u16 * 8,
            disable_sqflow: choices.chance(30),
            keep_alive_tmo: Duration::from_secs(choices.below(3).into()),
            reconnect_delay: Duration::from_secs(1),
            ctrl_loss_tmo: None,
            max_transfer: MAX_TRANSFER,
            requests: 32,
            ..HostOptions::new(targets[0], nqn, host_nqn, id)
        };
        let policy = match targets.len() {
            1 => Policy::default(),
            _ => [Policy::QueueDepth, Policy::RoundRobin, Policy::Numa][choices.below(3) as usize],
        };
        let mut host = Paths::new(&options, targets, policy, &memory).expect("address space is plenty");
        host.start(&mut provider, now);
        Self {
            number,
            host,
            provider,
            memory,
            pool,
            in_place: choices.chance(30),
            rewrites: targets.len() > 1,
            outstanding: BTreeMap::new(),
            next_tag: 0,
            is_expelled: false,
            succeeded: 0,
            failed: 0,
        }
    }

    pub(super) fn turn(&mut self, now: Time, shadows: &mut [Shadow]) -> bool {
        let mut busy = self.provider.pump(now);
        while let Some(event) = self.provider.poll() {
            busy = true;
            self.host.on_event(&mut self.provider, event, now);
        }
        busy |= self.host.turn(&mut self.provider, now);
        while let Some((_, completed)) = self.host.next_completed() {
            busy = true;
            self.on_completed(completed, shadows);
        }
        while let Some((path, event)) = self.host.next_event() {
            super::trace(|| format!("host {} path {path} {event:?}", self.number));
            if let HostEvent::Failed(error) = event {
                self.first_connect_failed(error);
            }
        }
        busy
    }

    /// The first connection is tried once; a world whose link breaks just then has nothing to watch.
    fn first_connect_failed(&self, error: impl std::fmt::Display) {
        assert!(self.succeeded == 0 || self.is_expelled, "gave up although told never to: {error}");
    }

    /// Starts one more request, if there is room and nobody else is at its blocks.
    pub(super) fn submit(&mut self, shadows: &mut [Shadow], choices: &mut impl Choices) -> bool {
        let namespaces = self.host.namespaces();
        // Others are somebody else's.
        let is_own = |index: &usize| namespaces[*index].nsid as usize <= shadows.len();
        let own: Vec<usize> = (0..namespaces.len()).filter(is_own).collect();
        if own.is_empty() || !self.host.has_room() || self.host.is_over() {
            return false;
        }
        let index = own[choices.below(own.len() as u32) as usize];
        let disk = namespaces[index].nsid as usize - 1;
        let size = (namespaces[index].geometry.size / u64::from(BLOCK_SIZE)) as u32;
        let (most, within) = match self.rewrites && choices.chance(60) {
            true => (3, 8),
            false if choices.chance(20) => (BLOCKS_MAX, size),
            false => (9, size),
        };
        let count = 1 + choices.below(most);
        let first = choices.below(within - count) as usize;
        let blocks = first..first + count as usize;
        let Some((operation, what)) = pick(&mut shadows[disk], blocks.clone(), choices) else { return false };
        let length = count * BLOCK_SIZE;
        let needs_buffer = matches!(operation, Operation::Read | Operation::Write { .. });
        let buffer = if needs_buffer { self.buffer(length) } else { None };
        let outstanding = Outstanding { disk, what, buffer };
        if needs_buffer && outstanding.buffer.is_none() {
            outstanding.give_up(&mut shadows[disk]);
            return false;
        }
        self.fill(&outstanding);
        let tag = self.next_tag;
        self.next_tag += 1;
        let buffer = outstanding.buffer.as_ref().map(Buffer::sge);
        let offset = first as u64 * u64::from(BLOCK_SIZE);
        let request = Request { tag, operation, offset, length: length.into(), buffer };
        super::trace(|| format!("host {} submit {tag} disk {disk} {operation:?} {blocks:?}", self.number));
        match self.host.submit(index, request) {
            Ok(()) => drop(self.outstanding.insert(tag, outstanding)),
            Err(_) => {
                self.give_back(outstanding.buffer.as_ref());
                outstanding.give_up(&mut shadows[disk]);
            }
        }
        true
    }

    fn buffer(&self, length: u32) -> Option<Buffer> {
        if !self.in_place {
            return self.pool.lease(length).map(Buffer::Leased);
        }
        let own = Own::new(Pages::zeroed(length as usize));
        let lkey = self.memory.register(Arc::clone(own.region()));
        Some(Buffer::InPlace { sge: self.memory.sge(lkey, 0, length), _own: own })
    }

    /// Memory of a request's own is nobody's any more: whoever still named it would find no region there.
    fn give_back(&self, buffer: Option<&Buffer>) {
        if let Some(Buffer::InPlace { sge, .. }) = buffer {
            assert!(
                !self.provider.exposes(sge.lkey),
                "the target reaches memory of a request which has ended"
            );
            drop(self.memory.unregister(sge.lkey));
        }
    }

    fn fill(&self, outstanding: &Outstanding) {
        if let (What::Write { write, .. }, Some(buffer)) = (&outstanding.what, &outstanding.buffer) {
            let words = buffer.sge().length / 8;
            let bytes: Vec<u8> = (0..words).flat_map(|_| write.content.to_le_bytes()).collect();
            self.memory.write(buffer.sge(), &bytes);
        }
    }

    fn on_completed(&mut self, completed: Completed, shadows: &mut [Shadow]) {
        super::trace(|| format!("host {} {completed:?}", self.number));
        let Outstanding { disk, what, buffer } =
            self.outstanding.remove(&completed.tag).expect("a request ends once");
        let shadow = &mut shadows[disk];
        let succeeded = completed.result.is_ok();
        // Of several parts some may have been written, and of several attempts the first.
        let in_one = |write: &Write| write.blocks.len() as u32 * BLOCK_SIZE <= MAX_TRANSFER;
        let is_path = |status: Status| status.status_type() == StatusType::Path;
        let refused_whole = matches!(completed.result, Err(IoError::Refused(status)) if is_path(status))
            && self
                .host
                .hosts()
                .all(|host| host.counters().reconnects == 0 && host.state() == State::Connected)
            && matches!(&what, What::Write { write, .. } if in_one(write));
        self.succeeded += u64::from(succeeded);
        self.failed += u64::from(!succeeded);
        let reads = succeeded && matches!(what, What::Read(_));
        let contents = buffer.as_ref().filter(|_| reads).map(|buffer| self.contents(buffer.sge()));
        self.give_back(buffer.as_ref());
        match what {
            What::Read(blocks) => {
                shadow.end_read(blocks, contents.as_deref());
            }
            What::Write { write, .. } if refused_whole => shadow.withdraw_write(&write),
            What::Write { write, durable, hint } => shadow.end_write(&write, succeeded && !hint, durable),
            What::Flush(flush) if succeeded => shadow.end_flush(&flush),
            What::Flush(_) => {}
        }
    }

    /// What each block of the buffer is filled with.
    fn contents(&self, buffer: Sge) -> Vec<u64> {
        let mut bytes = vec![0; buffer.length as usize];
        self.memory.read(buffer, &mut bytes);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let block = |block: &[u8]| {
            let first = word(&block[..8]);
            assert!(block.chunks(8).all(|chunk| word(chunk) == first), "a torn block");
            first
        };
        bytes.chunks(BLOCK_SIZE as usize).map(block).collect()
    }

    pub(super) fn close(&mut self, now: Time) {
        self.host.close(&mut self.provider, now);
    }

    pub(super) fn is_over(&self) -> bool {
        self.host.is_over()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.outstanding.len()
    }

    /// Where it stands, for whoever looks into a world that is stuck.
    pub(super) fn describe(&self) -> String {
        let Self { host, outstanding, .. } = self;
        format!("{:?} with {} requests, due at {:?}", host.state(), outstanding.len(), host.deadline())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        [self.host.deadline(), self.provider.deadline()].into_iter().flatten().min()
    }

    /// Whether it has had no reason to connect again.
    pub(super) fn is_undisturbed(&self) -> bool {
        self.is_expelled || self.host.hosts().all(|host| host.counters().reconnects == 0)
    }

    /// # Panics
    /// If a buffer has not come back.
    pub(super) fn check_at_rest(&self) {
        assert!(self.outstanding.is_empty(), "a request was never answered");
        assert_eq!(self.pool.available(), self.pool.total(), "a buffer of the host leaked");
    }
}

impl Outstanding {
    /// It was never submitted: nothing has been written.
    fn give_up(self, shadow: &mut Shadow) {
        match self.what {
            What::Read(blocks) => shadow.end_read(blocks, None),
            What::Write { write, .. } => shadow.end_write(&write, false, false),
            What::Flush(_) => {}
        }
    }
}

fn pick(shadow: &mut Shadow, blocks: Range<usize>, choices: &mut impl Choices) -> Option<(Operation, What)> {
    let fua = choices.chance(20);
    let write = |shadow: &mut Shadow, content, operation, hint| {
        let write = shadow.begin_write(blocks.clone(), content)?;
        Some((operation, What::Write { write, durable: fua, hint }))
    };
    match choices.below(10) {
        0..=3 => shadow.begin_read(blocks.clone()).then_some((Operation::Read, What::Read(blocks))),
        4..=6 => write(shadow, None, Operation::Write { fua }, false),
        7 => {
            let unmap = choices.chance(50);
            write(shadow, Some(0), Operation::WriteZeroes { unmap, fua }, false)
        }
        8 => write(shadow, Some(0), Operation::Discard, true),
        _ => Some((Operation::Flush, What::Flush(shadow.begin_flush()))),
    }
}
