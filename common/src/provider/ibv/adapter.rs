//! One RDMA adapter as one reactor uses it: a protection domain, what is registered in it, and completion queues.
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_sys::{
    ibv_access_flags, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_mr, ibv_pd, ibv_poll_cq,
    ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_req_notify_cq, ibv_sge, ibv_wc,
};

use super::cm::CmId;
use super::connection::{Receiving, Share};
use super::in_use::InUse;
use super::lending::{Role, Window, choose, region_access};
use super::library::Library;
use super::queue_pair::Owner;
use super::registration::{Buffers, Registration};
use super::shared::{self, SharedReceives, Spill};
use crate::memory::Memory;
use crate::provider::receives::Receives;
use crate::verbs::{self, Sge};

/// Entries of a completion queue, which connections share; less where the adapter has less.
const ENTRIES: u32 = 16_384;
/// What an adapter may do with memory that is nobody else's.
pub(super) const LOCAL: ibv_access_flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
/// Completions taken at once.
const BATCH: usize = 32;

pub(super) struct Adapter {
    library: &'static Library,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    /// Where a completion queue says that something has completed, once it was armed.
    channel: *mut ibv_comp_channel,
    memory: Rc<Memory>,
    limits: ibv_device_attr,
    /// Regions which connections share, by their number.
    registrations: Vec<Option<Registration>>,
    queues: Vec<CompletionQueue>,
    /// Receives which connections share; made with the first of them.
    shared: Option<SharedReceives>,
    /// How many there may be; none where connections have their own.
    shared_most: u32,
    /// Whether what an RDMA Read writes to has to be registered as writable for its peer.
    sinks_are_lent: bool,
    /// How buffers are lent to peers, if they are.
    lends: Option<verbs::Registration>,
    /// Connections which go by it.
    pub(super) connections: usize,
    /// It was taken away: it goes with its last connection.
    removed: bool,
    in_use: InUse,
    /// Keeps the adapter open, and is told when it is taken away; goes last.
    _anchor: CmId,
}

struct CompletionQueue {
    cq: *mut ibv_cq,
    /// Entries which no connection has reserved.
    free: u32,
    armed: bool,
    /// How often nothing was left in it.
    emptied: u64,
}

/// Room in a completion queue.
#[derive(Debug)]
#[must_use = "room that was reserved is to be given back"]
pub(super) struct Reserved {
    queue: usize,
    entries: u32,
}

impl Adapter {
    /// The adapter that `anchor` is bound to.
    pub(super) fn new(
        library: &'static Library,
        anchor: CmId,
        memory: Rc<Memory>,
        role: Role,
    ) -> io::Result<Self> {
        let context = anchor.verbs();
        // SAFETY: numbers, for which zeroes are valid.
        let mut limits: ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the identifier keeps the context open, and the structure is the one it fills.
        let result = unsafe { (library.query_device)(context, &raw mut limits) };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result));
        }
        let lends = match role {
            Role::Target => None,
            Role::Host(asked) => Some(choose(&limits, asked)?),
        };
        // SAFETY: as above.
        let name = unsafe { library.name_of(context) };
        // SAFETY: as above.
        let iwarp = unsafe { library.is_iwarp(context) };
        // On iWARP a message which finds no receive ends its connection, so each has its own.
        let shared_most = if role == Role::Target && !iwarp { shared::most(&limits) } else { 0 };
        // SAFETY: as above.
        let pd = unsafe { (library.alloc_pd)(context) };
        if pd.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut adapter = Self {
            library,
            context,
            pd,
            channel: null_mut(),
            memory,
            limits,
            registrations: Vec::new(),
            queues: Vec::new(),
            shared: None,
            shared_most,
            sinks_are_lent: role == Role::Target && iwarp,
            lends,
            connections: 0,
            removed: false,
            // SAFETY: the identifier keeps the context open, and goes after.
            in_use: unsafe { InUse::new(context) },
            _anchor: anchor,
        };
        // SAFETY: as above.
        adapter.channel = unsafe { (library.create_comp_channel)(context) };
        if adapter.channel.is_null() {
            return Err(io::Error::last_os_error());
        }
        fcntl(adapter.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        adapter.log_limits(&name);
        Ok(adapter)
    }

    fn log_limits(&self, name: &str) {
        let ibv_device_attr { max_qp, max_qp_wr, max_sge, max_cqe, max_mr, max_mr_size, max_mw, .. } =
            self.limits;
        let reads = self.reads_out();
        let (lends, receives) = (self.lends, self.shared_most);
        tracing::info!(
            name,
            ?lends,
            max_qp,
            max_qp_wr,
            max_sge,
            max_cqe,
            max_mr,
            max_mr_size,
            max_mw,
            reads,
            receives,
            "adapter in use"
        );
        if lends.is_none() && receives == 0 {
            tracing::info!(name, "the adapter shares no receives: each connection locks memory for its own");
        }
    }

    pub(super) fn is(&self, context: *mut ibv_context) -> bool {
        self.context == context
    }

    /// RDMA Reads which a queue pair takes from its peer at once.
    pub(super) fn reads_in(&self) -> u32 {
        u32::try_from(self.limits.max_qp_rd_atom).unwrap_or(0)
    }

    /// RDMA Reads which a queue pair may have outstanding.
    pub(super) fn reads_out(&self) -> u32 {
        u32::try_from(self.limits.max_qp_init_rd_atom).unwrap_or(0)
    }

    /// A piece of memory as the adapter names it. Registers its region the first time.
    pub(super) fn piece(&mut self, sge: Sge) -> io::Result<ibv_sge> {
        let number = sge.lkey as usize;
        let known = self.registrations.get(number).and_then(Option::as_ref).and_then(|one| one.piece(sge));
        if let Some(piece) = known {
            return Ok(piece);
        }
        self.share(sge.lkey)?;
        let registration = self.registrations[number].as_ref().expect("just made");
        Ok(registration.piece(sge).expect("a piece lies within its region"))
    }

    /// Registers a region that connections share, unless it is known already.
    pub(super) fn share(&mut self, lkey: u32) -> io::Result<()> {
        let known = self.registrations.get(lkey as usize).and_then(Option::as_ref);
        if known.is_some_and(|one| self.memory.is_registered(lkey, &one.region)) {
            return Ok(());
        }
        let lends = self.lends.map(|lends| self.memory.lends(lkey, lends));
        let registration = self.register(lkey, lends.map_or(LOCAL, region_access))?;
        let number = lkey as usize;
        if self.registrations.len() <= number {
            self.registrations.resize_with(number + 1, || None);
        }
        // What stood there is of a region that has given up its number, with nothing in flight.
        self.registrations[number] = Some(registration);
        Ok(())
    }

    fn register(&self, lkey: u32, access: ibv_access_flags) -> io::Result<Registration> {
        let region = self.memory.region(lkey);
        check_region(&self.limits, region.len())?;
        // SAFETY: the domain is valid, and outlives what is registered in it: that goes first.
        unsafe { Registration::new(self.library, self.pd, region, access) }
    }

    /// How buffers are lent to peers.
    pub(super) fn lends(&self) -> verbs::Registration {
        self.lends.unwrap_or_default()
    }

    /// Whether a piece is of memory which is not there for long.
    pub(super) fn is_passing(&self, sge: Sge) -> bool {
        self.memory.region(sge.lkey).is_passing()
    }

    /// The key under which peers reach a piece, where regions are registered for them.
    pub(super) fn key(&mut self, sge: Sge) -> io::Result<u32> {
        Ok(self.registration(sge)?.rkey())
    }

    /// The region of a piece, as work that binds a window names it.
    pub(super) fn region(&mut self, sge: Sge) -> io::Result<*mut ibv_mr> {
        Ok(self.registration(sge)?.handle())
    }

    fn registration(&mut self, sge: Sge) -> io::Result<&Registration> {
        self.piece(sge)?;
        Ok(self.registrations[sge.lkey as usize].as_ref().expect("a piece of it was just named"))
    }

    /// Registers a piece alone for the peer's use.
    pub(super) fn register_for_peer(&self, sge: Sge, access: ibv_access_flags) -> io::Result<Registration> {
        let region = self.memory.region(sge.lkey);
        let start = usize::try_from(sge.address - region.address()).map_err(io::Error::other)?;
        let bytes = start..start + sge.length as usize;
        // SAFETY: the domain is valid, and connections go before it.
        unsafe { Registration::part(self.library, self.pd, region, bytes, LOCAL | access) }
    }

    /// A memory window of type 2.
    pub(super) fn window(&self) -> io::Result<Window> {
        // SAFETY: the domain is valid, and connections go before it.
        unsafe { Window::new(self.pd) }
    }

    /// Buffers of one connection, registered as long as they are there.
    pub(super) fn buffers(&self, count: u16, size: u32) -> io::Result<Buffers> {
        let receives = Receives::new(&self.memory, count, size)?;
        let registration = self.register(receives.lkey(), LOCAL)?;
        Ok(Buffers { registration, receives })
    }

    /// Where an RDMA Read may write to, if that has to be registered for it alone: the key, which its peer learns, ends
    /// before anybody looks at the bytes.
    pub(super) fn sink(&self, sge: Sge) -> io::Result<Option<Registration>> {
        let lent = || self.register_for_peer(sge, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE);
        self.sinks_are_lent.then(lent).transpose()
    }

    /// Receives for a connection whose peer may send so many messages of so many bytes at once. `number` is the adapter's.
    pub(super) fn receives(&mut self, number: usize, count: u16, size: u32) -> io::Result<Receiving> {
        if self.shared.is_none() && self.shared_most > 0 {
            // SAFETY: the domain is valid, and goes after.
            match unsafe { SharedReceives::new(self.library, self.pd, self.shared_most, size) } {
                Ok(shared) => self.shared = Some(shared),
                Err(error) => {
                    tracing::warn!(%error, "the adapter shares no receives: each connection locks memory for its own");
                    self.shared_most = 0;
                }
            }
        }
        // What is asked for buffers is not what is asked for them.
        let Some(mut shared) = self.shared.take_if(|shared| shared.size() == size) else {
            return self.buffers(count, size).map(Receiving::Own);
        };
        let admitted = Spill::new(&self.memory, count, size)
            .and_then(|spill| shared.admit(count, |count, size| self.buffers(count, size)).map(|()| spill));
        self.shared = Some(shared);
        admitted.map(|spill| Receiving::Shared(Share { adapter: number, owed: count, spill }))
    }

    /// The connection which had these receives is gone, or has not come.
    pub(super) fn forgo(&mut self, receives: &Receiving, qp_num: Option<u32>) {
        if let (Receiving::Shared(share), Some(shared)) = (receives, &mut self.shared) {
            shared.leave(qp_num, share.owed);
        }
    }

    pub(super) const fn shared(&self) -> Option<&SharedReceives> {
        self.shared.as_ref()
    }

    /// The connection with this queue pair has its messages come into shared receives.
    pub(super) fn enrol(&mut self, qp_num: u32, owner: Owner) {
        if let Some(shared) = &mut self.shared {
            shared.enrol(qp_num, owner);
        }
    }

    /// A region in which messages lie from now on, told of once.
    pub(super) fn next_region(&mut self) -> Option<u32> {
        self.shared.as_mut().and_then(SharedReceives::next_region)
    }

    /// A message is not needed any more which lies where it had come.
    pub(super) fn give_back(&mut self, buffer: u32) {
        if let Some(shared) = &mut self.shared {
            shared.give_back(buffer);
        }
    }

    /// It was taken away.
    pub(super) fn remove(&mut self) {
        self.removed = true;
        self.in_use.is_removed();
    }

    pub(super) const fn is_removed(&self) -> bool {
        self.removed
    }

    /// It was taken away, and nothing of it is in use any more.
    pub(super) fn is_over(&self) -> bool {
        self.removed && self.connections == 0 && !self.shared.as_ref().is_some_and(SharedReceives::is_lent)
    }

    /// Lets go of regions which have given up their number.
    pub(super) fn sweep(&mut self) {
        for (lkey, place) in (0..).zip(&mut self.registrations) {
            place.take_if(|one| !self.memory.is_registered(lkey, &one.region));
        }
    }

    /// Room for so many completions.
    pub(super) fn reserve(&mut self, entries: u32) -> io::Result<Reserved> {
        if let Some(queue) = self.queues.iter().position(|queue| queue.free >= entries) {
            self.queues[queue].free -= entries;
            return Ok(Reserved { queue, entries });
        }
        let most = u32::try_from(self.limits.max_cqe).unwrap_or(0);
        // All that is received by shared receives may come by one queue.
        let needed = entries + self.shared_most;
        if needed > most {
            let text = format!("a completion queue of {needed} entries is needed; the adapter has {most}");
            return Err(io::Error::other(text));
        }
        let size = ENTRIES.clamp(needed, most);
        let wanted = i32::try_from(size).map_err(io::Error::other)?;
        // SAFETY: the context is open, and the channel of it.
        let cq = unsafe { (self.library.create_cq)(self.context, wanted, null_mut(), self.channel, 0) };
        if cq.is_null() {
            return Err(io::Error::last_os_error());
        }
        self.queues.push(CompletionQueue { cq, free: size - needed, armed: false, emptied: 0 });
        Ok(Reserved { queue: self.queues.len() - 1, entries })
    }

    /// The queue pair whose completions had this room is gone, and what it left behind was polled.
    pub(super) fn release(&mut self, Reserved { queue, entries }: Reserved) {
        self.queues[queue].free += entries;
    }

    pub(super) fn queue(&self, reserved: &Reserved) -> *mut ibv_cq {
        self.queues[reserved.queue].cq
    }

    /// How often nothing was left in that completion queue.
    pub(super) fn emptied(&self, reserved: &Reserved) -> u64 {
        self.queues[reserved.queue].emptied
    }

    /// Takes what has completed, a batch of each queue at most, and says whether there was anything.
    pub(super) fn poll(&mut self, mut completion: impl FnMut(&ibv_wc, Option<&mut SharedReceives>)) -> bool {
        let mut any = false;
        // SAFETY: numbers, for which zeroes are valid.
        let mut completions: [ibv_wc; BATCH] = unsafe { zeroed() };
        let room = i32::try_from(BATCH).expect("a batch is small");
        for queue in &mut self.queues {
            // SAFETY: the completion queue is valid, and there is room for as many as are asked for.
            let count = unsafe { ibv_poll_cq(queue.cq, room, completions.as_mut_ptr()) };
            let count = usize::try_from(count).unwrap_or(0);
            queue.emptied += u64::from(count < BATCH);
            any |= count > 0;
            completions[..count].iter().for_each(|one| completion(one, self.shared.as_mut()));
        }
        any
    }

    /// From now on the next completion makes the descriptor readable.
    pub(super) fn arm(&mut self) {
        for queue in self.queues.iter_mut().filter(|queue| !queue.armed) {
            // SAFETY: the completion queue is valid.
            let result = unsafe { ibv_req_notify_cq(queue.cq, 0) };
            queue.armed = result == 0;
        }
    }

    /// The descriptor has become readable: takes what it has to say, once for each queue that was armed, which says no
    /// more. Only where several are may one have nothing to say yet, and the last look be in vain.
    pub(super) fn disarm(&mut self) {
        while self.queues.iter().any(|queue| queue.armed) {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is valid, and there is a place for each.
            let result = unsafe { (self.library.get_cq_event)(self.channel, &raw mut cq, &raw mut context) };
            if result != 0 {
                return;
            }
            // SAFETY: just taken, of a completion queue of ours.
            unsafe { (self.library.ack_cq_events)(cq, 1) };
            self.queues.iter_mut().filter(|queue| queue.cq == cq).for_each(|queue| queue.armed = false);
        }
    }

    /// Makes the queue pair of an identifier; says whether up to `inline` bytes may be posted inline.
    pub(super) fn queue_pair(
        &self,
        id: &mut CmId,
        wish: ibv_qp_init_attr,
        inline: u32,
    ) -> io::Result<(*mut ibv_qp, bool)> {
        check_queue_pair(&self.limits, &wish.cap)?;
        if self.sinks_are_lent {
            // Linux's siw takes no Send with Invalidate inline.
            let made = id.create_queue_pair(self.pd, &mut { wish });
            return Ok((made.map_err(|error| no_queue_pair(&self.limits, &error))?, false));
        }
        let mut first = wish;
        first.cap.max_inline_data = inline;
        match id.create_queue_pair(self.pd, &mut first) {
            Ok(qp) => Ok((qp, true)),
            // One without inline data may still do.
            Err(_) => {
                let made = id.create_queue_pair(self.pd, &mut { wish });
                Ok((made.map_err(|error| no_queue_pair(&self.limits, &error))?, false))
            }
        }
    }
}

/// Whether something of an adapter was given back, or is gone with it: it may have been taken away a moment ago.
pub(super) const fn is_gone(result: i32) -> bool {
    matches!(result, 0 | libc::EIO)
}

impl AsFd for Adapter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is ours until this is dropped.
        let descriptor = unsafe { (*self.channel).fd };
        // SAFETY: the descriptor is the channel's, and open as long.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.registrations.clear();
        self.shared = None;
        for queue in self.queues.drain(..) {
            // SAFETY: made by us, destroyed once; queue pairs go before, and its events were acknowledged.
            let result = unsafe { (self.library.destroy_cq)(queue.cq) };
            debug_assert!(result == 0 || self.removed, "a completion queue stays: {result}");
        }
        if !self.channel.is_null() {
            // SAFETY: made by us, destroyed once, after its completion queues.
            let result = unsafe { (self.library.destroy_comp_channel)(self.channel) };
            debug_assert!(result == 0 || self.removed, "a completion channel stays: {result}");
        }
        // SAFETY: made by us, given back once, and nothing is left in it.
        let result = unsafe { (self.library.dealloc_pd)(self.pd) };
        debug_assert!(result == 0 || self.removed, "a protection domain stays: {result}");
    }
}

/// Whether a queue pair is possible at all.
fn check_queue_pair(limits: &ibv_device_attr, wanted: &ibv_qp_cap) -> io::Result<()> {
    let work = wanted.max_send_wr.max(wanted.max_recv_wr);
    let pieces = wanted.max_send_sge.max(wanted.max_recv_sge);
    let most = |limit| u32::try_from(limit).unwrap_or(0);
    let (most_work, most_pieces) = (most(limits.max_qp_wr), most(limits.max_sge));
    let text = if work > most_work {
        format!(
            "a queue pair of {work} work requests is needed; the adapter has {most_work}: choose a lower depth"
        )
    } else if pieces > most_pieces {
        format!("work requests of {pieces} pieces are needed; the adapter takes {most_pieces}")
    } else {
        return Ok(());
    };
    Err(io::Error::other(text))
}

fn no_queue_pair(limits: &ibv_device_attr, error: &io::Error) -> io::Error {
    let most = limits.max_qp;
    let text = format!("the adapter makes no queue pair ({error}); it has {most} for all who use it");
    io::Error::new(error.kind(), text)
}

fn check_region(limits: &ibv_device_attr, length: usize) -> io::Result<()> {
    if length as u64 <= limits.max_mr_size {
        return Ok(());
    }
    let most = limits.max_mr_size;
    Err(io::Error::other(format!("a region of {length} bytes is to be registered; the adapter takes {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_adapter_has_not_is_refused_with_both_numbers() {
        // SAFETY: numbers, for which zeroes are valid.
        let mut limits: ibv_device_attr = unsafe { zeroed() };
        (limits.max_qp_wr, limits.max_sge, limits.max_mr_size, limits.max_qp) = (256, 2, 1 << 20, 9);
        let wanted = |work, pieces| ibv_qp_cap {
            max_send_wr: work,
            max_recv_wr: 1,
            max_send_sge: pieces,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        assert!(check_queue_pair(&limits, &wanted(256, 2)).is_ok());
        let refused =
            |work, pieces| check_queue_pair(&limits, &wanted(work, pieces)).unwrap_err().to_string();
        assert!(
            refused(257, 2).starts_with("a queue pair of 257 work requests is needed; the adapter has 256")
        );
        assert_eq!(refused(256, 3), "work requests of 3 pieces are needed; the adapter takes 2");
        assert!(check_region(&limits, 1 << 20).is_ok());
        let large = check_region(&limits, (1 << 20) + 1).unwrap_err().to_string();
        assert!(large.contains("1048577") && large.ends_with("takes 1048576"), "{large}");
        let none = no_queue_pair(&limits, &io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(none.ends_with("it has 9 for all who use it"), "{none}");
    }
}
