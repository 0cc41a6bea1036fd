//! Bytes from the network: MPA frames, a stream in full operation, capsules and all that lies in them.
use ironside_common::iwarp::mpa::{Frame, FrameKind, Parsed, Terms};
use ironside_common::iwarp::{Config, Role, Staging, Stream, StreamEvent, Work};
use ironside_common::nvme::fabrics::ConnectData;
use ironside_common::nvme::private_data::{Reject, Reply, Request};
use ironside_common::nvme::{Command, Completion, DataPointer, Nqn, QueueKind, io};
use ironside_common::verbs::{Access, Kind, Remote, Token};

use super::{Choices, Place};

/// Bytes of a receive buffer.
const RECEIVE: u32 = 8192;
const RECEIVES: u16 = 4;

/// An MPA frame: read in any part, it asks for more bytes or is whole, and what is whole can be written.
pub fn mpa(data: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        let mut length = 0;
        loop {
            match Frame::parse(kind, &data[..length]) {
                Ok(Parsed::Needs(bytes)) => {
                    assert!(bytes > length, "it asks for what it has");
                    length = bytes;
                    if length > data.len() {
                        break;
                    }
                }
                Ok(Parsed::Whole(frame)) => {
                    let again = Frame::parse(kind, &frame.to_bytes());
                    assert_eq!(again, Ok(Parsed::Whole(frame)), "what was read can be written");
                    break;
                }
                Err(_) => break,
            }
        }
    }
    if let Ok(request) = Request::parse(data) {
        assert!(!request.to_string().is_empty());
    }
    let _ = (Reply::parse(data), Reject::parse(data));
}

/// A stream in full operation, whose peer sends anything, split anywhere. What was posted comes back once,
/// and no byte changes that was not lent.
pub fn iwarp(data: &[u8]) {
    let mut choices = Choices::new(data);
    let (crc, role) = (choices.coin(), if choices.coin() { Role::Initiator } else { Role::Responder });
    let place = Place::new(1 << 20);
    let terms = Terms { crc, ird: 4, ord: 4, rtr: None };
    let config = Config { role, terms, ulpdu_max: 1400, receives: RECEIVES, send_queue: 16, seed: 1 };
    let mut stream = Stream::new(config);
    for id in 0..RECEIVES {
        stream.post_receive(id.into(), place.sge(u32::from(id) * RECEIVE, RECEIVE));
    }
    let lent = place.sge(0x8_0000, 0x1000);
    let slot = stream.allocate();
    let remote = stream.prepare(slot, lent);
    stream.post(Work::Register { slot, remote, memory: lent, access: Access::RemoteWrite });
    let token = Token { kind: Kind::Fetch, generation: 0, qpair: 0, slot: 0 };
    stream.post(Work::Read {
        token,
        from: Remote { address: 0, rkey: 7 },
        into: place.sge(0x9_0000, 0x1000),
    });

    let mut pending = Vec::new();
    while !choices.is_empty() {
        let length = choices.below(2000) as usize;
        let now = length.min(choices.0.len());
        pending.extend_from_slice(&choices.0[..now]);
        choices.0 = &choices.0[now..];
        let taken = stream.receive(&pending, &place).unwrap_or(pending.len());
        pending.drain(..taken);
        drain(&mut stream, &place);
    }
    stream.close(&place);
    drain(&mut stream, &place);
    let mut untouched = [0; 0x1000];
    for offset in [0x7_F000, 0x8_1000, 0x9_1000] {
        place.memory.read(place.sge(offset, 0x1000), &mut untouched);
        assert!(untouched.iter().all(|byte| *byte == 0), "a byte beside what was lent has changed");
    }
}

fn drain(stream: &mut Stream, place: &Place) {
    while let Some(event) = stream.poll() {
        if let StreamEvent::Received { id, length, .. } = event {
            assert!(length <= RECEIVE);
            stream.post_receive(id, place.sge(id * RECEIVE, RECEIVE));
        }
    }
    if stream.wants_room() {
        stream.lend(Staging::new());
    }
    let bytes = stream.transmit(place).len();
    stream.sent(bytes);
}

/// Capsules: any 64 or 16 bytes mean something or are refused, and survive being read and written.
pub fn nvme(data: &[u8]) {
    if let Some(command) = Command::from_capsule(data) {
        assert_eq!(command.to_bytes(), data[..64]);
        for queue in [QueueKind::Admin, QueueKind::Io] {
            assert!(!command.on(queue).to_string().is_empty());
        }
        let _ = DataPointer::parse(&command, u32::try_from(data.len() - 64).unwrap_or(u32::MAX));
        for block_shift in [9, 12] {
            let geometry = io::Geometry { block_shift, blocks: 1 << 20, transfer_max: 1 << 20 };
            let _ = io::Request::parse(&command, &geometry);
        }
    }
    if let Some(completion) = Completion::from_capsule(data) {
        assert_eq!(completion.to_bytes(), data[..16]);
        assert!(!completion.to_string().is_empty());
    }
    if let Ok((connect, _)) = <ConnectData as zerocopy::FromBytes>::read_from_prefix(data) {
        assert!(!connect.to_string().is_empty());
    }
    if let Some(field) = data.first_chunk::<256>()
        && let Ok(nqn) = Nqn::from_field(field)
    {
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
    }
}
