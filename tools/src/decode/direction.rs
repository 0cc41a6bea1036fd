//! One direction of an iWARP connection: an MPA frame, then FPDUs, then the messages they carry.
use std::cell::Cell;
use std::rc::Rc;

use ironside_common::iwarp::crc::{CRC_LENGTH, crc32c};
use ironside_common::iwarp::fpdu::{Fpdu, Segment, SendSegment};
use ironside_common::iwarp::mpa::{Frame, FrameKind, Parsed};
use ironside_common::iwarp::terminate::Reason;
use ironside_common::nvme::QueueKind;
use ironside_common::nvme::private_data::{Reject, Reply, Request};

use super::{Line, capsule};

const REQUEST_KEY: &[u8] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8] = b"MPA ID Rep Frame";

/// What the two directions of a connection know of each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shared {
    /// From the private data of the request; `None` if the beginning was not captured.
    queue: Option<QueueKind>,
    /// Either side asked for CRCs.
    crc: bool,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Phase {
    /// Nothing but its first bytes can tell what it carries.
    Beginning,
    /// Commands come this way.
    FromHost,
    /// Responses come this way.
    FromController,
    /// Its beginning was not captured: a message of 16 bytes is a response.
    Unknown,
    /// Not iWARP, or out of step.
    Deaf,
}

pub(super) struct Direction {
    phase: Phase,
    shared: Rc<Cell<Shared>>,
    /// Bytes of which no whole FPDU has been made yet.
    pending: Vec<u8>,
    /// Segments so far of the Send which is coming in.
    message: Vec<u8>,
}

pub(super) fn looks_like_stream(bytes: &[u8]) -> bool {
    bytes.starts_with(REQUEST_KEY)
        || bytes.starts_with(REPLY_KEY)
        || matches!(Fpdu::parse(bytes), Ok(Some(fpdu)) if fpdu.length() <= bytes.len())
}

/// One direction on its own, as hexadecimal text gives it.
pub(super) fn lines_of_stream(bytes: &[u8], queue: QueueKind) -> Vec<Line> {
    let shared = Shared { queue: Some(queue), crc: false };
    let mut direction = Direction::new(Rc::new(Cell::new(shared)));
    let mut lines = direction.receive(bytes);
    if !direction.pending.is_empty() && direction.phase != Phase::Deaf {
        lines
            .push(Line::new("stream", format!("{} bytes of an unfinished message", direction.pending.len())));
    }
    lines
}

impl Direction {
    pub(super) fn new(shared: Rc<Cell<Shared>>) -> Self {
        Self { phase: Phase::Beginning, shared, pending: Vec::new(), message: Vec::new() }
    }

    /// Takes the next bytes, and gives what became whole.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        if self.phase == Phase::Deaf {
            return lines;
        }
        self.pending.extend_from_slice(bytes);
        if self.phase == Phase::Beginning && !self.begin(&mut lines) {
            return lines;
        }
        while self.phase != Phase::Deaf && self.one_fpdu(&mut lines) {}
        lines
    }

    /// Whether the frame at the beginning, or its absence, has been dealt with.
    fn begin(&mut self, lines: &mut Vec<Line>) -> bool {
        let length = self.pending.len().min(REQUEST_KEY.len());
        let kind = match &self.pending[..length] {
            key if REQUEST_KEY.starts_with(key) && REPLY_KEY.starts_with(key) => return false,
            key if REQUEST_KEY.starts_with(key) => FrameKind::Request,
            key if REPLY_KEY.starts_with(key) => FrameKind::Reply,
            _ => {
                self.phase = Phase::Unknown;
                return true;
            }
        };
        match Frame::parse(kind, &self.pending) {
            Ok(Parsed::Needs(_)) => false,
            Ok(Parsed::Whole(frame)) => {
                lines.push(Line::new("MPA", self.frame(&frame)));
                let length = frame.to_bytes().len();
                self.pending.drain(..length.min(self.pending.len()));
                true
            }
            Err(error) => {
                lines.push(Line::new("MPA", error.to_string()));
                self.phase = Phase::Deaf;
                true
            }
        }
    }

    fn frame(&mut self, frame: &Frame) -> String {
        let mut shared = self.shared.get();
        shared.crc |= frame.crc;
        let private = &frame.private_data;
        let (word, said) = match frame.kind {
            FrameKind::Request => {
                self.phase = Phase::FromHost;
                let request = Request::parse(private);
                if let Ok(request) = &request {
                    let is_admin = request.qid.get() == 0;
                    shared.queue = Some(if is_admin { QueueKind::Admin } else { QueueKind::Io });
                }
                ("request", request.map_or_else(|status| status.to_string(), |request| request.to_string()))
            }
            FrameKind::Reply => {
                self.phase = Phase::FromController;
                let reply = match frame.reject {
                    true => Reject::parse(private).map(|reject| reject.to_string()),
                    false => Reply::parse(private).map(|reply| reply.to_string()),
                };
                ("reply", reply.unwrap_or_else(|| "no private data of NVMe".into()))
            }
        };
        self.shared.set(shared);
        if frame.markers {
            self.phase = Phase::Deaf;
        }
        format!("{word}{}; {said}", settings(frame))
    }

    /// Whether a whole FPDU was there.
    fn one_fpdu(&mut self, lines: &mut Vec<Line>) -> bool {
        let fpdu = match Fpdu::parse(&self.pending) {
            Ok(Some(fpdu)) if fpdu.length() <= self.pending.len() => fpdu,
            Ok(_) => return false,
            Err(fault) => {
                lines.push(Line::new("stream", format!("nothing more can be read: {fault}")));
                self.phase = Phase::Deaf;
                return false;
            }
        };
        let bytes: Vec<u8> = self.pending.drain(..fpdu.length()).collect();
        let (covered, crc) = bytes.split_at(bytes.len() - CRC_LENGTH);
        if self.shared.get().crc && crc32c(covered) != crc {
            lines.push(Line::new("stream", "the CRC of the next message is wrong".into()));
        }
        let begin = fpdu.header_length();
        let payload = &bytes[begin..bytes.len() - fpdu.trailer_length()];
        lines.extend(self.segment(&fpdu, payload));
        true
    }

    fn segment(&mut self, fpdu: &Fpdu, payload: &[u8]) -> Option<Line> {
        let bytes = payload.len();
        Some(match fpdu.segment {
            Segment::Write { to, last } => {
                let more = if last { "" } else { ", more follows" };
                let text = format!("{bytes} bytes to {:#x} key {:#010x}{more}", to.address, to.rkey);
                Line::new("RDMA Write", text)
            }
            Segment::ReadResponse { to, last } => {
                let more = if last { "" } else { ", more follows" };
                let text = format!("{bytes} bytes to {:#x} key {:#010x}{more}", to.address, to.rkey);
                Line::new("RDMA Read Response", text)
            }
            Segment::ReadRequest(read) => {
                let (source, sink) = (read.source, read.sink);
                let text = format!(
                    "{} bytes from {:#x} key {:#010x} to {:#x} key {:#010x}",
                    read.length, source.address, source.rkey, sink.address, sink.rkey
                );
                Line::new("RDMA Read Request", text)
            }
            Segment::Terminate { .. } => {
                let reason = Reason::decode(payload).map_or("empty".into(), |reason| reason.to_string());
                Line::new("Terminate", reason)
            }
            Segment::Send(send) => return self.send(send, payload),
        })
    }

    /// A capsule, once its last segment is there.
    fn send(&mut self, send: SendSegment, payload: &[u8]) -> Option<Line> {
        self.message.extend_from_slice(payload);
        if !send.last {
            return None;
        }
        let message = std::mem::take(&mut self.message);
        let is_response = match self.phase {
            Phase::FromController => true,
            Phase::FromHost => false,
            _ => message.len() == 16,
        };
        let queue = self.shared.get().queue.unwrap_or(QueueKind::Io);
        let text = capsule::message(&message, is_response, queue, send.invalidate);
        Some(Line::new("Send", text))
    }
}

fn settings(frame: &Frame) -> String {
    let mut text = format!(", revision {}", frame.revision);
    if frame.reject {
        text.push_str(", rejected");
    }
    text.push_str(if frame.crc { ", CRC" } else { ", no CRC" });
    if frame.markers {
        text.push_str(", markers (not decoded)");
    }
    if let Some(enhanced) = frame.enhanced {
        text.push_str(&format!(", IRD {} ORD {}", enhanced.ird, enhanced.ord));
        if enhanced.peer_to_peer {
            text.push_str(", peer-to-peer");
        }
    }
    text
}
