//! What a front-end and we have said to each other: features, memory and queues. Messages in, answers out; the socket is
//! somebody else's.
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use zerocopy::IntoBytes;

use super::QUEUES;
use super::device::{Disk, feature};
use super::inflight::Inflight;
use super::memory::{GuestMemory, MemoryError, SLOTS};
use super::message::{Descriptor, MemoryRegion, Request, VringState, protocol_feature};
use super::queue::Queue;
use super::socket::{Descriptors, without_waiting};

/// Why something is not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("there is no queue {0}")]
    Queue(u32),
    #[error("a queue of {0} descriptors, or one that is at work")]
    QueueSize(u32),
    #[error("a queue which begins at {0}")]
    QueueBase(u32),
    #[error("the guest's memory: {0}")]
    Memory(#[from] MemoryError),
    #[error("the memory for what is under way: {0}")]
    Inflight(io::Error),
    #[error("features that are not offered ({0:#x})")]
    Features(u64),
    #[error("{there} file descriptors with a message that has {wanted}")]
    Descriptors { there: usize, wanted: usize },
    #[error("a queue without a descriptor for notifications: it would have to be polled")]
    Polling,
    #[error("a file descriptor: {0}")]
    Descriptor(io::Error),
    #[error("a part of the configuration which cannot be written")]
    Configuration,
    #[error("message {0} is not known")]
    Unknown(u32),
}

/// What is to be done for a message.
pub(super) enum Outcome {
    /// It is acknowledged, if the front-end wants that.
    Done,
    Reply(Vec<u8>, Option<OwnedFd>),
    /// First these queues have to be drained: then [`FrontEnd::drained`] tells the answer.
    Drain(Drain),
}

/// Which queues are to be stopped once nothing of them is under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Drain {
    One(u32),
    All,
}

/// See the module's description.
pub(super) struct FrontEnd {
    features: u64,
    protocol: u64,
    pub(super) memory: GuestMemory,
    /// Those the front-end has spoken of, and those before them.
    pub(super) queues: Vec<Queue>,
    inflight: Option<Inflight>,
    /// Where the front-end hears what we say by ourselves.
    channel: Option<OwnedFd>,
}

impl FrontEnd {
    pub(super) fn new() -> Self {
        Self {
            features: 0,
            protocol: 0,
            memory: GuestMemory::default(),
            queues: Vec::new(),
            inflight: None,
            channel: None,
        }
    }

    /// What the driver and we have agreed upon.
    pub(super) const fn features(&self) -> u64 {
        self.features
    }

    pub(super) const fn acknowledges(&self) -> bool {
        self.protocol & protocol_feature::REPLY_ACK != 0
    }

    /// Where a change of the configuration is told, if the front-end wants to hear of it.
    pub(super) fn channel(&self) -> Option<BorrowedFd<'_>> {
        const WANTED: u64 = protocol_feature::BACKEND_CHANNEL | protocol_feature::CONFIGURATION;
        self.channel.as_ref().filter(|_| self.protocol & WANTED == WANTED).map(AsFd::as_fd)
    }

    /// Takes a message of the front-end.
    pub(super) fn handle(
        &mut self,
        request: Request,
        descriptors: Descriptors,
        disk: &mut Disk,
    ) -> Result<Outcome, Refusal> {
        match request {
            Request::GetFeatures => return Ok(number(disk.features())),
            Request::SetFeatures(bits) => {
                known(bits, !feature::IMPOSSIBLE)?;
                // Others are between the guest and the front-end.
                self.features = bits & feature::KNOWN;
            }
            Request::SetOwner => {}
            Request::ResetOwner => self.queues.iter_mut().for_each(|queue| queue.enable(false)),
            Request::GetProtocolFeatures => return Ok(number(protocol_feature::OFFERED)),
            Request::SetProtocolFeatures(bits) => self.protocol = known(bits, protocol_feature::OFFERED)?,
            Request::GetQueueCount => return Ok(number(QUEUES as u64)),
            Request::GetMemorySlots => return Ok(number(SLOTS as u64)),
            Request::SetMemoryTable(regions) => self.set_memory(&regions, &descriptors)?,
            Request::AddMemory(region) => {
                let file = only(descriptors)?;
                self.memory.add(region, &file)?;
                self.memory_changed();
            }
            Request::RemoveMemory(region) => {
                self.memory.remove(region)?;
                self.memory_changed();
            }
            Request::GetConfiguration(part) => {
                // Looked at when it was parsed: it lies inside.
                let (start, size) = (part.offset as usize, part.size as usize);
                let bytes = &disk.configuration()[start..start + size];
                return Ok(reply(&[part.as_bytes(), bytes]));
            }
            Request::SetConfiguration(part, bytes) => {
                let written = disk.configure(part.offset, &bytes);
                return if written { Ok(Outcome::Done) } else { Err(Refusal::Configuration) };
            }
            Request::SetBackendChannel => self.channel = Some(only(descriptors)?),
            Request::GetInflight(wanted, length) => {
                let (area, file) = Inflight::make(wanted).map_err(Refusal::Inflight)?;
                return Ok(Outcome::Reply(payload(&[area.on_the_wire(length)]), Some(file)));
            }
            Request::SetInflight(area) => self.inflight = Some(Inflight::take(area, &only(descriptors)?)?),
            Request::ResetDevice => {
                self.queues.iter_mut().for_each(Queue::drain);
                return Ok(Outcome::Drain(Drain::All));
            }
            Request::GetQueueBase(state) => {
                self.queue(state.index)?.drain();
                return Ok(Outcome::Drain(Drain::One(state.index)));
            }
            Request::Unknown(message) => return Err(Refusal::Unknown(message)),
            about_a_queue => self.handle_queue(about_a_queue, descriptors)?,
        }
        Ok(Outcome::Done)
    }

    fn handle_queue(&mut self, request: Request, descriptors: Descriptors) -> Result<(), Refusal> {
        match request {
            Request::SetQueueSize(VringState { index, number }) => {
                let taken = self.queue(index)?.set_size(number);
                return if taken { Ok(()) } else { Err(Refusal::QueueSize(number)) };
            }
            Request::SetQueueAddresses(addresses) => {
                self.queue(addresses.index)?;
                let Self { memory, queues, .. } = self;
                queues[addresses.index as usize].set_addresses(addresses, memory);
            }
            Request::SetQueueBase(VringState { index, number }) => {
                let base = u16::try_from(number).map_err(|_| Refusal::QueueBase(number))?;
                self.queue(index)?.set_base(base);
            }
            Request::EnableQueue(VringState { index, number }) => self.queue(index)?.enable(number != 0),
            Request::SetKick(Descriptor { comes: false, .. }) => return Err(Refusal::Polling),
            Request::SetKick(at) => {
                let kick = bell(at, descriptors)?.ok_or(Refusal::Polling)?;
                self.queue(at.index)?.set_kick(kick);
            }
            Request::SetCall(at) => self.queue(at.index)?.set_call(bell(at, descriptors)?),
            Request::SetError(at) => self.queue(at.index)?.set_error(bell(at, descriptors)?),
            // The others are not about a queue.
            _ => {}
        }
        Ok(())
    }

    /// Whether nothing of these queues is under way.
    pub(super) fn is_drained(&self, drain: Drain) -> bool {
        match drain {
            Drain::One(index) => self.queues[index as usize].under_way() == 0,
            Drain::All => self.queues.iter().all(|queue| queue.under_way() == 0),
        }
    }

    /// Stops queues of which nothing is under way; the answer to who asked for that.
    pub(super) fn drained(&mut self, drain: Drain) -> Outcome {
        match drain {
            Drain::One(index) => {
                let base = self.queues[index as usize].stop();
                reply(&[VringState { index, number: base.into() }.as_bytes()])
            }
            Drain::All => {
                for queue in &mut self.queues {
                    queue.stop();
                    queue.enable(false);
                }
                Outcome::Done
            }
        }
    }

    /// Begins to serve every queue of which all is told.
    pub(super) fn start(&mut self) {
        let inflight = self.inflight.as_ref();
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.start(index, &self.memory, self.features, inflight) {
                tracing::debug!(index, "a queue of the machine is served");
            }
        }
    }

    fn set_memory(&mut self, regions: &[MemoryRegion], files: &[OwnedFd]) -> Result<(), Refusal> {
        if regions.len() != files.len() {
            return Err(Refusal::Descriptors { there: files.len(), wanted: regions.len() });
        }
        self.memory.clear();
        for (region, file) in regions.iter().zip(files) {
            self.memory.add(*region, file)?;
        }
        self.memory_changed();
        Ok(())
    }

    fn memory_changed(&mut self) {
        for queue in &mut self.queues {
            queue.move_to(&self.memory);
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue, Refusal> {
        let place =
            usize::try_from(index).ok().filter(|&place| place < QUEUES).ok_or(Refusal::Queue(index))?;
        if place >= self.queues.len() {
            self.queues.resize_with(place + 1, Queue::default);
        }
        Ok(&mut self.queues[place])
    }
}

fn known(bits: u64, offered: u64) -> Result<u64, Refusal> {
    if bits & !offered == 0 { Ok(bits) } else { Err(Refusal::Features(bits & !offered)) }
}

/// The one descriptor of a message.
fn only(descriptors: Descriptors) -> Result<OwnedFd, Refusal> {
    let there = descriptors.len();
    let mut each = descriptors.into_iter();
    match (each.next(), there) {
        (Some(descriptor), 1) => Ok(descriptor),
        _ => Err(Refusal::Descriptors { there, wanted: 1 }),
    }
}

fn bell(at: Descriptor, descriptors: Descriptors) -> Result<Option<OwnedFd>, Refusal> {
    if !at.comes {
        return Ok(None);
    }
    without_waiting(only(descriptors)?).map(Some).map_err(Refusal::Descriptor)
}

fn number(number: u64) -> Outcome {
    reply(&[number.as_bytes()])
}

fn reply(parts: &[&[u8]]) -> Outcome {
    Outcome::Reply(payload(parts), None)
}

fn payload(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}
