//! RoCEv2 in words: the messages of the connection manager, and the operations of the queue pairs they made
//! (InfiniBand Architecture, volume 1, chapters 9 and 12).
use std::collections::BTreeMap;
use std::net::IpAddr;

use ironside_common::nvme::QueueKind;
use ironside_common::nvme::private_data::{Reject, Reply, Request};

use super::capture::Datagram;
use super::{Line, capsule};

/// Base transport header, and the invariant CRC at the end.
const BASE_LENGTH: usize = 12;
const CRC_LENGTH: usize = 4;
/// The queue pair of management datagrams.
const MANAGEMENT_QP: u32 = 1;
/// Headers of a datagram and, behind it, of management.
const DATAGRAM_LENGTH: usize = 8;
const MANAGEMENT_LENGTH: usize = 24;
/// Private data of a request begins with the addresses of RDMA CM.
const REQUEST_DATA: usize = 140 + 36;
const REPLY_DATA: usize = 36;
const REJECT_DATA: usize = 84;
/// The reason of a reject which the consumer explains by private data.
const CONSUMER_REJECT: u16 = 28;

/// Everything said, in the order it was captured.
pub(super) fn lines(packets: &[Datagram]) -> Vec<Line> {
    let mut fabric = Fabric::default();
    let mut lines = Vec::new();
    for datagram in packets {
        let Some(packet) = Packet::parse(&datagram.payload) else { continue };
        let said = fabric.take(datagram, &packet);
        let to = format!("{} QP {:#x}", datagram.to, packet.destination);
        lines.extend(said.map(|line| line.between(datagram.time, &datagram.from, &to)));
    }
    lines
}

struct Packet<'a> {
    opcode: u8,
    destination: u32,
    sequence: u32,
    /// Behind the base header, without padding and checksum.
    body: &'a [u8],
}

impl<'a> Packet<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let padding = usize::from(bytes.get(1)? >> 4 & 0b11);
        Some(Self {
            opcode: bytes[0],
            destination: be32(bytes, 4)? & 0xFF_FFFF,
            sequence: be32(bytes, 8)? & 0xFF_FFFF,
            body: bytes.get(BASE_LENGTH..bytes.len().checked_sub(CRC_LENGTH + padding)?)?,
        })
    }
}

/// One end of a connection, by its machine and number.
type End = (IpAddr, u32);

/// What is known of the connections so far.
#[derive(Default)]
struct Fabric {
    /// By the machine which asked, and its number of the connection: its queue pair, and the queue it is.
    requests: BTreeMap<End, (u32, QueueKind)>,
    /// What goes to this end: responses or commands, of which queue.
    roles: BTreeMap<End, (bool, QueueKind)>,
    flows: BTreeMap<(IpAddr, End), Flow>,
}

/// What one end has been sent.
#[derive(Default)]
struct Flow {
    last: Option<u32>,
    message: Vec<u8>,
    response: usize,
}

impl Fabric {
    fn take(&mut self, datagram: &Datagram, packet: &Packet<'_>) -> Option<Line> {
        if packet.destination == MANAGEMENT_QP {
            return Some(Line::new("CM", self.manage(datagram, packet.body.get(DATAGRAM_LENGTH..)?)?));
        }
        let end = (datagram.to, packet.destination);
        let role = self.roles.get(&end).copied();
        self.flows.entry((datagram.from, end)).or_default().take(packet, role)
    }

    /// A management datagram: its attribute says what it is.
    fn manage(&mut self, datagram: &Datagram, mad: &[u8]) -> Option<String> {
        let message = mad.get(MANAGEMENT_LENGTH..)?;
        Some(match be16(mad, 16)? {
            0x0010 => self.request(datagram, message)?,
            0x0011 => "MessageReceipt".into(),
            0x0012 => reject(message)?,
            0x0013 => self.reply(datagram, message)?,
            0x0014 => "ReadyToUse".into(),
            0x0015 => "DisconnectRequest".into(),
            0x0016 => "DisconnectReply".into(),
            other => format!("attribute {other:#06x}"),
        })
    }

    fn request(&mut self, datagram: &Datagram, message: &[u8]) -> Option<String> {
        let (port, qp) = (be16(message, 14)?, be32(message, 32)? >> 8);
        let request = Request::parse(message.get(REQUEST_DATA..)?);
        let is_admin = request.as_ref().is_ok_and(|request| request.qid.get() == 0);
        let queue = if is_admin { QueueKind::Admin } else { QueueKind::Io };
        self.requests.insert((datagram.from, be32(message, 0)?), (qp, queue));
        let said = request.map_or_else(|status| status.to_string(), |request| request.to_string());
        Some(format!("ConnectRequest to port {port} of QP {qp:#x}; {said}"))
    }

    fn reply(&mut self, datagram: &Datagram, message: &[u8]) -> Option<String> {
        let qp = be32(message, 12)? >> 8;
        if let Some((host_qp, queue)) = self.requests.remove(&(datagram.to, be32(message, 4)?)) {
            for (end, is_response) in [((datagram.to, host_qp), true), ((datagram.from, qp), false)] {
                self.roles.insert(end, (is_response, queue));
                // A number is used again: what was sent to it before is over.
                self.flows.retain(|(_, known), _| *known != end);
            }
        }
        let said = Reply::parse(message.get(REPLY_DATA..)?);
        let said = said.map_or_else(|| "no private data of NVMe".into(), |reply| reply.to_string());
        Some(format!("ConnectReply of QP {qp:#x}; {said}"))
    }
}

fn reject(message: &[u8]) -> Option<String> {
    let reason = be16(message, 10)?;
    Some(match Reject::parse(message.get(REJECT_DATA..)?) {
        Some(reject) if reason == CONSUMER_REJECT => format!("ConnectReject; {reject}"),
        _ => format!("ConnectReject, reason {reason}"),
    })
}

impl Flow {
    /// One packet of a reliable connection; what became whole by it.
    fn take(&mut self, packet: &Packet<'_>, role: Option<(bool, QueueKind)>) -> Option<Line> {
        let body = packet.body;
        let is_request = matches!(packet.opcode, 0x00..=0x0C | 0x16 | 0x17);
        if is_request && !self.is_new(packet.sequence) {
            return None;
        }
        match packet.opcode {
            // Send: first, middle, last, only; with immediate data or a key behind the base header.
            0x00 | 0x01 => {
                self.message.extend_from_slice(body);
                None
            }
            0x02 | 0x04 => Some(self.send(body, None, role)),
            0x03 | 0x05 => Some(self.send(body.get(4..)?, None, role)),
            0x16 | 0x17 => Some(self.send(body.get(4..)?, Some(be32(body, 0)?), role)),
            // RDMA Write: first and only say where and how much.
            0x06 | 0x0A | 0x0B => {
                Some(Line::new("RDMA Write", format!("{} to {}", bytes(body)?, place(body)?)))
            }
            0x0C => Some(Line::new("RDMA Read Request", format!("{} from {}", bytes(body)?, place(body)?))),
            0x0D..=0x10 => self.read_response(packet.opcode, body),
            0x11 => negative(*body.first()?).map(|said| Line::new("NAK", said)),
            _ => None,
        }
    }

    /// Whether it was not sent before: numbers have 24 bits, and go round.
    fn is_new(&mut self, sequence: u32) -> bool {
        let is_new = self.last.is_none_or(|last| {
            let ahead = sequence.wrapping_sub(last) & 0xFF_FFFF;
            ahead != 0 && ahead < 0x80_0000
        });
        if is_new {
            self.last = Some(sequence);
        }
        is_new
    }

    fn send(&mut self, end: &[u8], invalidates: Option<u32>, role: Option<(bool, QueueKind)>) -> Line {
        let mut message = std::mem::take(&mut self.message);
        message.extend_from_slice(end);
        // Of a connection whose beginning was not captured, 16 bytes are a response.
        let (is_response, queue) = role.unwrap_or((message.len() == 16, QueueKind::Io));
        Line::new("Send", capsule::message(&message, is_response, queue, invalidates))
    }

    /// First, last and only have a header of their own before the data.
    fn read_response(&mut self, opcode: u8, body: &[u8]) -> Option<Line> {
        let header = if opcode == 0x0E { 0 } else { 4 };
        self.response += body.len().checked_sub(header)?;
        let is_last = matches!(opcode, 0x0F | 0x10);
        is_last.then(|| {
            let length = std::mem::take(&mut self.response);
            Line::new("RDMA Read Response", format!("{length} bytes"))
        })
    }
}

/// Why a packet was not taken, if that is what an acknowledgement says.
fn negative(syndrome: u8) -> Option<String> {
    match (syndrome >> 5 & 0b11, syndrome & 0x1F) {
        (0b01, _) => Some("the receiver is not ready".into()),
        (0b11, 0) => Some("packets are missing".into()),
        (0b11, 1) => Some("invalid request".into()),
        (0b11, 2) => Some("remote access error".into()),
        (0b11, 3) => Some("remote operational error".into()),
        (0b11, code) => Some(format!("code {code}")),
        _ => None,
    }
}

fn bytes(body: &[u8]) -> Option<String> {
    Some(format!("{} bytes", be32(body, 12)?))
}

fn place(body: &[u8]) -> Option<String> {
    let address = u64::from(be32(body, 0)?) << 32 | u64::from(be32(body, 4)?);
    Some(format!("{address:#x} key {:#010x}", be32(body, 8)?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_be_bytes(*chunk))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_be_bytes(*chunk))
}

#[cfg(test)]
pub(super) fn any_packet_is_survived(bytes: &[u8]) {
    let machine = IpAddr::from([192, 0, 2, 1]);
    let packet = |payload: &[u8]| {
        let time = std::time::Duration::ZERO;
        Datagram { time, from: machine, to: machine, payload: payload.to_vec() }
    };
    let management = [&[0x64, 0, 0, 0, 0, 0, 0, 1][..], bytes].concat();
    lines(&[packet(bytes), packet(&management), packet(&[&[0x0D], bytes].concat())]);
}
