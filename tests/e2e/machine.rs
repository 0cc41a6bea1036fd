//! A virtual machine which is none: the front-end of vhost-user and a guest's driver, over real sockets and shared memory. It
//! touches the memory by its file, so nothing here is mapped.
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::bench::eventually;

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const ID: u32 = 8;

const MEMORY: u64 = 4 << 20;
/// Where this front-end says that it sees the guest's first byte.
const USER: u64 = 0x5000_0000;
const SIZE: u16 = 64;
const TABLE_AT: u64 = 0x1000;
const AVAILABLE_AT: u64 = 0x2000;
const USED_AT: u64 = 0x3000;
const HEADERS_AT: u64 = 0x4000;
const STATUSES_AT: u64 = 0x5000;
const DATA_AT: u64 = 0x10_0000;
/// Bytes between the data of one request and the next.
const ROOM: u64 = 64 << 10;
/// FLUSH, version 1, vhost-user's own, notifications by index.
const FEATURES: u64 = 1 << 9 | 1 << 32 | 1 << 30 | 1 << 29;
/// Acknowledgements, what we are told by ourselves, configuration, inflight.
const PROTOCOL: u64 = 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12;
const NEED_REPLY: u32 = 8;

/// The guest, which outlives its connections.
pub(crate) struct Guest {
    memory: File,
    available: u16,
    used: u16,
    /// What the back-end wants kept of what is under way: its description, and the memory.
    inflight: Option<(Vec<u8>, OwnedFd)>,
}

/// The guest's connection to its disk.
pub(crate) struct FrontEnd {
    socket: UnixStream,
    kick: EventFd,
    call: EventFd,
    /// Where the back-end speaks by itself.
    pub(crate) channel: UnixStream,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let memory = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        memory.set_len(MEMORY).unwrap();
        Self { memory, available: 0, used: 0, inflight: None }
    }

    /// Connects and starts the queue, as QEMU does when it begins and when it comes back.
    pub(crate) fn connect(&mut self, socket: &Path) -> FrontEnd {
        let bell = || EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let (channel, theirs) = UnixStream::pair().unwrap();
        channel.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let socket = UnixStream::connect(socket).unwrap();
        let link = FrontEnd { socket, kick: bell(), call: bell(), channel };
        assert_eq!(number(&link.ask(1, &[], &[])) & FEATURES, FEATURES);
        assert_eq!(number(&link.ask(15, &[], &[])) & PROTOCOL, PROTOCOL);
        link.tell(16, &PROTOCOL.to_ne_bytes(), &[]);
        link.tell(21, &[], &[theirs.as_fd()]);
        link.tell(2, &FEATURES.to_ne_bytes(), &[]);
        if self.inflight.is_none() {
            link.send(
                31,
                0,
                &[&[0; 16][..], &1_u16.to_ne_bytes(), &SIZE.to_ne_bytes(), &[0; 4]].concat(),
                &[],
            );
            let (description, mut descriptors) = link.receive();
            self.inflight = Some((description, descriptors.pop().unwrap()));
        }
        let (description, file) = self.inflight.as_ref().unwrap();
        link.tell(32, description, &[file.as_fd()]);
        let region = [0, MEMORY, USER, 0].map(u64::to_ne_bytes).concat();
        link.tell(5, &[&1_u64.to_ne_bytes()[..], &region].concat(), &[self.memory.as_fd()]);
        let state = |number: u32| [0, number].map(u32::to_ne_bytes).concat();
        link.tell(8, &state(SIZE.into()), &[]);
        link.tell(10, &state(self.used.into()), &[]);
        let addresses = [0, USER + TABLE_AT, USER + USED_AT, USER + AVAILABLE_AT, 0];
        link.tell(9, &addresses.map(u64::to_ne_bytes).concat(), &[]);
        link.tell(12, &0_u64.to_ne_bytes(), &[link.kick.as_fd()]);
        link.tell(13, &0_u64.to_ne_bytes(), &[link.call.as_fd()]);
        link.tell(18, &state(1), &[]);
        link
    }

    /// Makes a request available, number `slot` of those under way, and rings.
    pub(crate) fn submit(&mut self, link: &FrontEnd, slot: u16, kind: u32, sector: u64, length: u32) {
        let head = slot * 3;
        let filled = if matches!(kind, READ | ID) { 2 } else { 0 };
        let header = HEADERS_AT + 16 * u64::from(slot);
        let status = STATUSES_AT + u64::from(slot);
        self.put(header, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        self.put(status, &[0xFF]);
        let next = if length == 0 { head + 2 } else { head + 1 };
        self.describe(head, header, 16, 1, next);
        self.describe(head + 1, data(slot), length, 1 | filled, head + 2);
        self.describe(head + 2, status, 1, 2, 0);
        self.put(AVAILABLE_AT + 4 + 2 * u64::from(self.available % SIZE), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.put(AVAILABLE_AT + 2, &self.available.to_le_bytes());
        link.kick.write(1).unwrap();
    }

    fn describe(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let bytes =
            [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.put(TABLE_AT + 16 * u64::from(index), &bytes.concat());
    }

    /// Waits for the next request that ended: its number and its status.
    pub(crate) fn wait(&mut self) -> (u16, u8) {
        eventually("a request ends", || self.get::<2>(USED_AT + 2) != self.used.to_le_bytes());
        let entry = self.get::<4>(USED_AT + 4 + 8 * u64::from(self.used % SIZE));
        self.used = self.used.wrapping_add(1);
        // The next one is to be heard of, too.
        self.put(AVAILABLE_AT + 4 + 2 * u64::from(SIZE), &self.used.to_le_bytes());
        let slot = u16::try_from(u32::from_le_bytes(entry) / 3).unwrap();
        (slot, self.get::<1>(STATUSES_AT + u64::from(slot))[0])
    }

    /// Whether nothing has ended that was not waited for.
    pub(crate) fn is_quiet(&self) -> bool {
        self.get::<2>(USED_AT + 2) == self.used.to_le_bytes()
    }

    /// One request from beginning to end.
    pub(crate) fn request(&mut self, link: &FrontEnd, kind: u32, sector: u64, length: u32) -> u8 {
        self.submit(link, 0, kind, sector, length);
        let (slot, status) = self.wait();
        assert_eq!(slot, 0);
        status
    }

    /// What the guest has for a request of this number, or got of it.
    pub(crate) fn put_data(&self, slot: u16, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= ROOM);
        self.put(data(slot), bytes);
    }

    pub(crate) fn data(&self, slot: u16, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, data(slot)).unwrap();
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    fn get<const LENGTH: usize>(&self, at: u64) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

fn data(slot: u16) -> u64 {
    DATA_AT + ROOM * u64::from(slot)
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().unwrap())
}

impl FrontEnd {
    /// Sends a message which is to be acknowledged.
    fn tell(&self, request: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        // Before acknowledgements are agreed upon there are none.
        let needs_reply = if request == 16 { 0 } else { NEED_REPLY };
        self.send(request, needs_reply, payload, descriptors);
        if needs_reply != 0 {
            assert_eq!(number(&self.receive().0), 0, "message {request} is refused");
        }
    }

    /// Sends a message which has an answer of its own.
    fn ask(&self, request: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Vec<u8> {
        self.send(request, 0, payload, descriptors);
        self.receive().0
    }

    /// Bytes of the configuration.
    pub(crate) fn configuration(&self, offset: u32, length: u32) -> Vec<u8> {
        let part = [offset, length, 0].map(u32::to_ne_bytes).concat();
        let answer = self.ask(24, &[part, vec![0; length as usize]].concat(), &[]);
        answer[12..].to_vec()
    }

    /// The guest writes a byte of the configuration.
    pub(crate) fn configure(&self, offset: u32, byte: u8) {
        self.tell(25, &[[offset, 1, 0].map(u32::to_ne_bytes).concat(), vec![byte]].concat(), &[]);
    }

    /// Stops the queue; says where it would go on.
    pub(crate) fn stop(&self) -> u32 {
        let state = self.ask(11, &[0; 8], &[]);
        u32::from_ne_bytes(state[4..].try_into().unwrap())
    }

    /// Whether the driver was interrupted since it was last asked.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.call.read().is_ok()
    }

    /// Waits until the back-end says by itself that the configuration has changed.
    pub(crate) fn wait_for_change(&mut self) {
        let mut message = [0; 12];
        self.channel.read_exact(&mut message).unwrap();
        assert_eq!(message, [2, 1, 0].map(u32::to_ne_bytes).concat()[..]);
    }

    /// Whether the back-end hangs up, rather than answer bytes.
    pub(crate) fn gets_hung_up_on_for(mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).unwrap();
        !matches!(self.socket.read(&mut [0]), Ok(1))
    }

    fn send(&self, request: u32, flags: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let size = u32::try_from(payload.len()).unwrap();
        let header = [request, 1 | flags, size].map(u32::to_ne_bytes).concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let sent = sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::empty()).unwrap();
        assert_eq!(sent, 12 + payload.len());
    }

    fn receive(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let (mut header, mut descriptors) = ([0; 12], Vec::new());
        self.fill(&mut header, &mut descriptors).unwrap();
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(4), 1 | 4, "an answer of this version");
        let mut payload = vec![0; word(8) as usize];
        self.fill(&mut payload, &mut descriptors).unwrap();
        (payload, descriptors)
    }

    fn fill(&self, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut part = [IoSliceMut::new(&mut into[filled..])];
            let count = recvmsg(&self.socket, &mut part, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            filled += count;
        }
        Ok(())
    }
}
