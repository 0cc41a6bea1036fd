//! One host of a world: the initiator's machine, and a workload which knows what every answer may be.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ironside_common::memory::{Lease, Memory, Pool, SizeClass};
use ironside_common::nvme::{Nqn, Status, StatusType};
use ironside_common::provider::sim::Choices;
use ironside_common::time::Time;
use ironside_common::verbs::{Registration, Verbs};
use ironside_initiator::host::{Host, HostEvent, HostOptions};
use ironside_initiator::volume::{Completed, IoError, Operation, Request};
use uuid::Uuid;

use super::BLOCK_SIZE;
use super::fabric::{Fabric, Pump};
use super::shadow::{Flush, Shadow, Write};

/// Bytes one command moves at most.
const MAX_TRANSFER: u32 = 8192;
/// Blocks of the largest request, more than one command moves.
const BLOCKS_MAX: u32 = 40;

pub(super) struct HostSide<F: Fabric> {
    number: u8,
    host: Host,
    provider: F::Provider,
    memory: Rc<Memory>,
    pool: Rc<Pool>,
    outstanding: BTreeMap<u64, Outstanding>,
    next_tag: u64,
    /// Requests which ended well.
    pub(super) succeeded: u64,
    pub(super) failed: u64,
}

struct Outstanding {
    disk: usize,
    what: What,
    lease: Option<Lease>,
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
        target: SocketAddr,
        nqn: Nqn,
        now: Time,
        choices: &mut impl Choices,
    ) -> Self {
        let memory = Memory::new();
        let classes = [SizeClass { size: 24 << 10, count: 16 }];
        let pool = Pool::new(&memory, &classes).expect("address space is plenty");
        let address = SocketAddr::from(([192, 0, 2, 100 + number], 1));
        let mut provider = fabric.provider(address, &memory, 1 + choices.below(8));
        provider.set_registration(match choices.below(4) {
            0 => Registration::Pool,
            1 => Registration::Dynamic,
            _ => Registration::Window,
        });
        let id = Uuid::from_u128(u128::from(number) + 1);
        let host_nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{id}").parse().expect("an NQN by its form");
        let options = HostOptions {
            nr_io_queues: 1 + choices.below(3) as u16,
            queue_size: 16 + choices.below(2) as u16 * 8,
            disable_sqflow: choices.chance(30),
            keep_alive_tmo: Duration::from_secs(choices.below(3).into()),
            reconnect_delay: Duration::from_secs(1),
            ctrl_loss_tmo: None,
            max_transfer: MAX_TRANSFER,
            requests: 32,
            ..HostOptions::new(target, nqn, host_nqn, id)
        };
        let mut host = Host::new(options, Rc::clone(&memory)).expect("address space is plenty");
        host.start(&mut provider, now);
        let outstanding = BTreeMap::new();
        Self { number, host, provider, memory, pool, outstanding, next_tag: 0, succeeded: 0, failed: 0 }
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
        while let Some(event) = self.host.next_event() {
            super::trace(|| format!("host {} {event:?}", self.number));
            if let HostEvent::Failed(error) = event {
                self.first_connect_failed(error);
            }
        }
        busy
    }

    /// The first connection is tried once; a world whose link breaks just then has nothing to watch.
    fn first_connect_failed(&self, error: impl std::fmt::Display) {
        assert!(self.succeeded == 0, "gave up although told never to: {error}");
    }

    /// Starts one more request, if there is room and nobody else is at its blocks.
    pub(super) fn submit(&mut self, shadows: &mut [Shadow], choices: &mut impl Choices) -> bool {
        let namespaces = self.host.namespaces();
        if namespaces.is_empty() || !self.host.has_room() || self.host.is_over() {
            return false;
        }
        let index = choices.below(namespaces.len() as u32) as usize;
        let disk = namespaces[index].nsid as usize - 1;
        let size = (namespaces[index].geometry.size / u64::from(BLOCK_SIZE)) as u32;
        let most = if choices.chance(20) { BLOCKS_MAX } else { 9 };
        let count = 1 + choices.below(most);
        let first = choices.below(size - count) as usize;
        let blocks = first..first + count as usize;
        let Some((operation, what)) = pick(&mut shadows[disk], blocks.clone(), choices) else { return false };
        let length = count * BLOCK_SIZE;
        let lease = match operation {
            Operation::Read | Operation::Write { .. } => self.pool.lease(length),
            _ => None,
        };
        let needs_lease = matches!(operation, Operation::Read | Operation::Write { .. });
        let outstanding = Outstanding { disk, what, lease };
        if needs_lease && outstanding.lease.is_none() {
            outstanding.give_up(&mut shadows[disk]);
            return false;
        }
        self.fill(&outstanding);
        let tag = self.next_tag;
        self.next_tag += 1;
        let buffer = outstanding.lease.as_ref().map(Lease::sge);
        let offset = first as u64 * u64::from(BLOCK_SIZE);
        let request = Request { tag, operation, offset, length: length.into(), buffer };
        super::trace(|| format!("host {} submit {tag} disk {disk} {operation:?} {blocks:?}", self.number));
        match self.host.submit(index, request) {
            Ok(()) => drop(self.outstanding.insert(tag, outstanding)),
            Err(_) => outstanding.give_up(&mut shadows[disk]),
        }
        true
    }

    fn fill(&self, outstanding: &Outstanding) {
        if let (What::Write { write, .. }, Some(lease)) = (&outstanding.what, &outstanding.lease) {
            let words = lease.sge().length / 8;
            let bytes: Vec<u8> = (0..words).flat_map(|_| write.content.to_le_bytes()).collect();
            self.memory.write(lease.sge(), &bytes);
        }
    }

    fn on_completed(&mut self, completed: Completed, shadows: &mut [Shadow]) {
        super::trace(|| format!("host {} {completed:?}", self.number));
        let Outstanding { disk, what, lease } =
            self.outstanding.remove(&completed.tag).expect("a request ends once");
        let shadow = &mut shadows[disk];
        let succeeded = completed.result.is_ok();
        // Of several parts some may have been written, and of several attempts the first.
        let in_one = |write: &Write| write.blocks.len() as u32 * BLOCK_SIZE <= MAX_TRANSFER;
        let is_path = |status: Status| status.status_type() == StatusType::Path;
        let refused_whole = matches!(completed.result, Err(IoError::Refused(status)) if is_path(status))
            && self.host.counters().reconnects == 0
            && matches!(&what, What::Write { write, .. } if in_one(write));
        self.succeeded += u64::from(succeeded);
        self.failed += u64::from(!succeeded);
        match what {
            What::Read(blocks) => {
                let contents = lease.filter(|_| succeeded).map(|lease| self.contents(&lease));
                shadow.end_read(blocks, contents.as_deref());
            }
            What::Write { write, .. } if refused_whole => shadow.withdraw_write(&write),
            What::Write { write, durable, hint } => shadow.end_write(&write, succeeded && !hint, durable),
            What::Flush(flush) if succeeded => shadow.end_flush(&flush),
            What::Flush(_) => {}
        }
    }

    /// What each block of the buffer is filled with.
    fn contents(&self, lease: &Lease) -> Vec<u64> {
        let mut bytes = vec![0; lease.sge().length as usize];
        self.memory.read(lease.sge(), &mut bytes);
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
