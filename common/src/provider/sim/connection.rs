//! One simulated connection: two ends, what each has posted, and the memory each has exposed.
use std::collections::VecDeque;

use crate::memory::Memory;
use crate::verbs::{
    Access, ConnectParameters, Exposure, MrHandle, QpHandle, Registration, Remote, Sge, Token, Wc, WcStatus,
};

/// Distance of receive buffers in memory, and where a message starts in one, so that the part behind a
/// 64-byte capsule is aligned to 512 bytes.
pub(super) const STRIDE: u32 = 4608 + 4096;
pub(super) const MESSAGE_OFFSET: u32 = 448;

/// Posted work, in send queue order. A chain is several of these.
#[derive(Debug)]
pub(super) enum Work {
    Read { token: Token, from: Remote, into: Sge },
    Write { from: Sge, to: Remote },
    Send { token: Token, head: Vec<u8>, data: Option<Sge>, invalidate: Option<u32>, cost: u32 },
    Register(Exposure),
    Invalidate { token: Token, key: u32 },
}

/// A completion which happened but has not been told yet, and the send queue entries it returns.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) wc: Wc,
    pub(super) cost: u32,
}

#[derive(Debug, Default)]
pub(super) struct Region {
    pub(super) key: u32,
    pub(super) exposed: Option<Exposure>,
}

impl Region {
    /// # Panics
    /// If a promise of the owner's is broken.
    pub(super) fn expose(&mut self, exposure: Exposure) {
        assert!(self.exposed.is_none(), "registered over a registration still valid");
        assert_eq!(self.key, exposure.remote.rkey, "registered under a key not prepared");
        self.exposed = Some(exposure);
    }
}

/// The first key of those that last; of the others, none is as large.
const LASTING: u32 = 1 << 30;

/// One side of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) endpoint: usize,
    pub(super) qp: QpHandle,
    pub(super) parameters: Option<ConnectParameters>,
    pub(super) reads: u32,
    pub(super) queue: VecDeque<Work>,
    pub(super) outstanding: VecDeque<Work>,
    pub(super) pending: VecDeque<Pending>,
    pub(super) used: u32,
    pub(super) receives: VecDeque<u32>,
    pub(super) receive_lkey: Option<u32>,
    pub(super) lent: u32,
    pub(super) regions: Vec<Region>,
    /// What the peer may reach for as long as the connection stands.
    pub(super) lasting: Vec<Exposure>,
    pub(super) told: bool,
    pub(super) destroyed: bool,
}

impl End {
    pub(super) fn new(endpoint: usize, qp: QpHandle) -> Self {
        Self {
            endpoint,
            qp,
            parameters: None,
            reads: 0,
            queue: VecDeque::new(),
            outstanding: VecDeque::new(),
            pending: VecDeque::new(),
            used: 0,
            receives: VecDeque::new(),
            receive_lkey: None,
            lent: 0,
            regions: Vec::new(),
            lasting: Vec::new(),
            told: false,
            destroyed: false,
        }
    }

    pub(super) fn complete(&mut self, token: Token, status: WcStatus, cost: u32) {
        self.pending.push_back(Pending { wc: Wc { qp: self.qp, token, status }, cost });
    }

    /// All posted work is over; what was signaled says so.
    pub(super) fn flush(&mut self) {
        let reads = std::mem::take(&mut self.outstanding);
        let queue = std::mem::take(&mut self.queue);
        for work in reads.into_iter().chain(queue) {
            match work {
                Work::Read { token, .. } | Work::Invalidate { token, .. } => {
                    self.complete(token, WcStatus::Flushed, 1);
                }
                Work::Send { token, cost, .. } => self.complete(token, WcStatus::Flushed, cost),
                Work::Write { .. } | Work::Register(_) => {}
            }
        }
        self.receives.clear();
    }

    /// The local memory which the peer may reach under `remote` for `length` bytes with `access`.
    pub(super) fn reach(&self, remote: Remote, length: u32, access: Access) -> Option<Sge> {
        let lasting = self.lasting.iter().copied();
        let mut exposed = self.regions.iter().filter_map(|region| region.exposed).chain(lasting);
        let exposed = exposed.find(|exposure| exposure.remote.rkey == remote.rkey)?;
        let offset = remote.address.checked_sub(exposed.remote.address)?;
        let end = offset.checked_add(u64::from(length))?;
        let granted = exposed.access == access || exposed.registration == Registration::Pool;
        if !granted || end > u64::from(exposed.sge.length) {
            return None;
        }
        Some(exposed.sge.slice(u32::try_from(offset).ok()?, length))
    }

    /// Whether the peer reaches any of a region.
    pub(super) fn exposes(&self, lkey: u32) -> bool {
        let exposed = self.regions.iter().filter_map(|region| region.exposed.as_ref());
        exposed.chain(&self.lasting).any(|exposure| exposure.sge.lkey == lkey)
    }

    /// The key of a whole region, which is in force from now on.
    pub(super) fn lasting(&mut self, whole: Sge, mr: MrHandle) -> Remote {
        if let Some(known) = self.lasting.iter().find(|exposure| exposure.sge.lkey == whole.lkey) {
            return known.remote;
        }
        let rkey = LASTING + u32::try_from(self.lasting.len()).expect("regions are few");
        let remote = Remote { address: u64::from(rkey) << 32, rkey };
        let (access, registration) = (Access::RemoteRead, Registration::Pool);
        self.lasting.push(Exposure { mr, sge: whole, access, remote, registration });
        remote
    }

    /// Ends a key which the owner names; false if there is no such valid key.
    #[must_use]
    pub(super) fn invalidate(&mut self, key: u32) -> bool {
        let region = self.regions.iter_mut().find(|region| region.key == key);
        region.is_some_and(|region| region.exposed.take().is_some())
    }

    /// Ends a key which the peer names; false if there is no such valid key, or it is not for the peer to end.
    #[must_use]
    pub(super) fn invalidate_remotely(&mut self, key: u32) -> bool {
        let exposed =
            self.regions.iter().filter(|region| region.key == key).find_map(|region| region.exposed);
        exposed.is_some_and(|exposure| exposure.registration.peer_invalidates()) && self.invalidate(key)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.outstanding.is_empty() && self.pending.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: [End; 2],
    pub(super) open: bool,
    pub(super) broken: bool,
}

/// Copies between the memories of two endpoints.
pub(super) fn copy(from: (&Memory, Sge), to: (&Memory, Sge)) {
    let mut bytes = vec![0; from.1.length as usize];
    from.0.read(from.1, &mut bytes);
    to.0.write(to.1, &bytes);
}
