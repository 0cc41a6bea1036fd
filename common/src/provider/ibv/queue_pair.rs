//! One queue pair of an adapter as work goes into it and comes out: chains posted with one call, completions told apart.
//! *Posting never fails, it completes*: what the adapter refuses to take is said to be refused, and completes as flushed.
//!
//! A work request is named by its connection and its place in the order of posting. So the names of work under way are
//! known here, whether or not the adapter still tells them.
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem::zeroed;
use std::ptr::null_mut;

use rdma_sys::{
    ibv_access_flags, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_post_recv, ibv_post_send, ibv_qp, ibv_recv_wr,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_status, ibv_wr_opcode,
};

use crate::verbs::{QpHandle, Remote, Sge, Token, WcStatus};

/// Names a receive.
const RECEIVE: u64 = 1 << 63;

/// Which use of which handle: the upper half of the name of all its work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Owner {
    pub(super) qp: QpHandle,
    /// Tells this use of the handle from the one before it; 15 bits of it count.
    pub(super) generation: u16,
}

impl Owner {
    fn name(self, place: u32) -> u64 {
        u64::from(self.generation & 0x7FFF) << 48 | u64::from(self.qp.0) << 32 | u64::from(place)
    }

    /// Whose completion this is, if the handle is still used by the one who posted the work.
    pub(super) fn of(completion: &ibv_wc) -> Self {
        let name = completion.wr_id;
        Self { qp: QpHandle((name >> 32) as u16), generation: (name >> 48) as u16 & 0x7FFF }
    }

    pub(super) const fn is(self, other: Self) -> bool {
        self.qp.0 == other.qp.0 && (self.generation ^ other.generation) & 0x7FFF == 0
    }
}

/// Work which lends a piece of memory to the peer: it binds a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) window: *mut ibv_mw,
    /// The registered region of the piece.
    pub(super) region: *mut ibv_mr,
    pub(super) sge: Sge,
    pub(super) key: u32,
    pub(super) access: ibv_access_flags,
}

/// What came out of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Received {
        buffer: u32,
        length: u32,
        invalidated: Option<u32>,
    },
    Completed {
        token: Token,
        status: WcStatus,
    },
    /// Work failed: the queue pair has broken. Whoever posted the work is told besides, if it was to be told at all.
    Failed {
        status: ibv_wc_status::Type,
        vendor: u32,
    },
    /// Work was flushed: the queue pair has broken, by whatever cause.
    Flushed,
}

/// What became of a chain that was posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "work which was refused completes as flushed"]
pub(super) enum Posted {
    /// Its completion will tell.
    Taken,
    /// The queue pair has broken in the middle of it; what was taken tells, if the adapter does.
    Partly,
    /// The adapter knows nothing of it.
    Refused,
}

/// Work queues of one connection.
#[derive(Debug)]
pub(super) struct QueuePair {
    qp: *mut ibv_qp,
    number: u32,
    owner: Owner,
    /// Whether what is short is copied as it is posted, so that the adapter need not fetch it.
    inline: bool,
    /// The place of the next work request.
    next: u32,
    /// What has yet to complete, and at which place, in order.
    posted: VecDeque<(u32, Token)>,
}

impl QueuePair {
    /// `depth` is how many work requests it takes to be signaled at most.
    ///
    /// # Safety
    /// The queue pair is valid, and outlives this.
    pub(super) unsafe fn new(qp: *mut ibv_qp, owner: Owner, inline: bool, depth: usize) -> Self {
        // SAFETY: the caller's promise.
        let number = unsafe { (*qp).qp_num };
        Self { qp, number, owner, inline, next: 0, posted: VecDeque::with_capacity(depth) }
    }

    /// Its number, by which completions of what is shared name it.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn post_receive(&self, buffer: u32, mut into: ibv_sge) -> Result<(), i32> {
        let mut work = ibv_recv_wr {
            wr_id: RECEIVE | self.owner.name(buffer),
            next: null_mut(),
            sg_list: &raw mut into,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair is valid, and the adapter copies the request, not what it names, before it returns.
        match unsafe { ibv_post_recv(self.qp, &raw mut work, &raw mut bad) } {
            0 => Ok(()),
            error => Err(error),
        }
    }

    pub(super) fn post_fetch(&mut self, token: Token, from: Remote, mut into: ibv_sge) -> Posted {
        let mut read = request(ibv_wr_opcode::IBV_WR_RDMA_READ, &mut into);
        read.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        set_remote(&mut read, from);
        self.post(token, &mut [read])
    }

    /// `response` stays as it is until `token` completes, unless responses are inline.
    pub(super) fn post_respond(
        &mut self,
        token: Token,
        data: Option<(ibv_sge, Remote)>,
        mut response: ibv_sge,
        invalidate: Option<u32>,
    ) -> Posted {
        let opcode = match invalidate {
            Some(_) => ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
            None => ibv_wr_opcode::IBV_WR_SEND,
        };
        let mut send = request(opcode, &mut response);
        let inline = if self.inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        send.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0 | inline;
        if let Some(key) = invalidate {
            send.imm_data_invalidated_rkey_union.invalidated_rkey = key;
            // Where Linux's siw looks for it; others do not look there.
            set_remote(&mut send, Remote { address: 0, rkey: key });
        }
        let Some((mut from, to)) = data else { return self.post(token, &mut [send]) };
        let mut write = request(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &mut from);
        set_remote(&mut write, to);
        self.post(token, &mut [write, send])
    }

    /// Whether short messages are copied as they are posted.
    pub(super) const fn copies(&self) -> bool {
        self.inline
    }

    /// A command, and data behind it; in front of both what lends a buffer for it. `command` stays as it is until
    /// `token` completes, unless it is `inline`.
    pub(super) fn post_command(
        &mut self,
        token: Token,
        binding: Option<Binding>,
        command: ibv_sge,
        data: Option<ibv_sge>,
        inline: bool,
    ) -> Posted {
        let mut pieces = [command, data.unwrap_or(command)];
        let mut send = request(ibv_wr_opcode::IBV_WR_SEND, &mut pieces[0]);
        send.sg_list = pieces.as_mut_ptr();
        send.num_sge = if data.is_some() { 2 } else { 1 };
        let inline = if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        send.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0 | inline;
        match binding {
            None => self.post(token, &mut [send]),
            Some(binding) => self.post(token, &mut [bind(binding), send]),
        }
    }

    /// Ends a key that was bound by work.
    pub(super) fn post_invalidate(&mut self, token: Token, key: u32) -> Posted {
        let mut nothing = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let mut invalidate = request(ibv_wr_opcode::IBV_WR_LOCAL_INV, &mut nothing);
        (invalidate.sg_list, invalidate.num_sge) = (null_mut(), 0);
        invalidate.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        invalidate.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        self.post(token, &mut [invalidate])
    }

    /// Posts a chain with one call, of which the last request alone is signaled and completes with `token`. Where the
    /// adapter takes only the beginning, `token` completes with what it took, since it may use its buffers until then.
    fn post(&mut self, token: Token, chain: &mut [ibv_send_wr]) -> Posted {
        let first = self.next;
        for (index, work) in (0..).zip(chain.iter_mut()) {
            work.wr_id = self.owner.name(first.wrapping_add(index));
        }
        for index in 1..chain.len() {
            let (before, after) = chain.split_at_mut(index);
            before[index - 1].next = &raw mut after[0];
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is valid, and so is the chain, which the adapter copies before it returns.
        let error = unsafe { ibv_post_send(self.qp, chain.as_mut_ptr(), &raw mut bad) };
        let taken = match error {
            0 => chain.len(),
            _ => {
                tracing::debug!(error, "an adapter refuses work: its queue pair has broken");
                chain.iter().position(|work| std::ptr::eq(work, bad)).unwrap_or(0)
            }
        };
        let Some(last) = u32::try_from(taken).ok().and_then(|taken| taken.checked_sub(1)) else {
            return Posted::Refused;
        };
        let last = first.wrapping_add(last);
        self.posted.push_back((last, token));
        self.next = last.wrapping_add(1);
        if error == 0 { Posted::Taken } else { Posted::Partly }
    }

    /// Says what a completion means which names this queue pair's work.
    pub(super) fn on_completion(&mut self, completion: &ibv_wc, mut outcome: impl FnMut(Outcome)) {
        let status = match completion.status {
            ibv_wc_status::IBV_WC_SUCCESS => WcStatus::Success,
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
            status => WcStatus::Failed(status),
        };
        match status {
            WcStatus::Success => {}
            WcStatus::Flushed => outcome(Outcome::Flushed),
            WcStatus::Failed(status) => {
                outcome(Outcome::Failed { status, vendor: completion.vendor_err });
            }
        }
        let place = completion.wr_id as u32;
        if completion.wr_id & RECEIVE != 0 {
            if status == WcStatus::Success {
                outcome(received(completion, place));
            }
            return;
        }
        // One that is not waited for was not signaled, and is reported since it has failed. It is the first that waits,
        // unless the adapter tells of a Send before the RDMA Read in front of it, as Linux's siw does.
        let index = self.posted.iter().position(|&(posted, _)| posted == place);
        if let Some((_, token)) = index.and_then(|index| self.posted.remove(index)) {
            outcome(Outcome::Completed { token, status });
        }
    }

    /// The names of all work which has yet to complete, once the queue pair is gone and nothing will tell.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Token> {
        self.posted.drain(..).map(|(_, token)| token)
    }
}

/// That a key was invalidated, as Linux's rxe tells it: the kernel's flag, which programs know as another that connected
/// queue pairs never set.
const KERNELS_WITH_INVALIDATE: ibv_wc_flags = ibv_wc_flags::IBV_WC_IP_CSUM_OK;

fn received(completion: &ibv_wc, buffer: u32) -> Outcome {
    let flags = ibv_wc_flags::IBV_WC_WITH_INV | KERNELS_WITH_INVALIDATE;
    let with_invalidate = completion.wc_flags & flags.0 != 0;
    // SAFETY: both members are a number of 32 bits.
    let key = unsafe { completion.imm_data_invalidated_rkey_union.invalidated_rkey };
    Outcome::Received { buffer, length: completion.byte_len, invalidated: with_invalidate.then_some(key) }
}

fn request(opcode: ibv_wr_opcode::Type, piece: &mut ibv_sge) -> ibv_send_wr {
    // SAFETY: numbers and pointers, for which zeroes are valid.
    let mut work: ibv_send_wr = unsafe { zeroed() };
    work.opcode = opcode;
    work.sg_list = piece;
    work.num_sge = 1;
    work
}

fn bind(binding: Binding) -> ibv_send_wr {
    let Binding { window, region, sge, key, access } = binding;
    // SAFETY: numbers and pointers, for which zeroes are valid.
    let mut work: ibv_send_wr = unsafe { zeroed() };
    work.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
    let bind_info = ibv_mw_bind_info {
        mr: region,
        addr: sge.address,
        length: sge.length.into(),
        mw_access_flags: access.0,
    };
    work.bind_mw_tso_union.bind_mw = rdma_sys::bind_mw_t { mw: window, rkey: key, bind_info };
    work
}

fn set_remote(work: &mut ibv_send_wr, at: Remote) {
    work.wr.rdma = rdma_sys::rdma_t { remote_addr: at.address, rkey: at.rkey };
}
