//! RDMA operations as they were captured, over iWARP and over RoCEv2 alike.
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::pcap;

const ROCE_PORT: u16 = 4791;

/// What one side of a connection did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Did {
    Send {
        message: Vec<u8>,
        invalidate: Option<u32>,
    },
    /// One piece of an RDMA Write.
    Write {
        key: u32,
        address: u64,
        bytes: Vec<u8>,
    },
    ReadRequest {
        key: u32,
        address: u64,
        length: u32,
    },
    /// The whole answer to the read request it is the next answer to.
    ReadResponse(Vec<u8>),
    Terminate,
}

/// One queue pair: what each end said while connecting, and did afterwards.
#[derive(Clone, Debug, Default)]
pub struct QueuePair {
    pub request: Vec<u8>,
    pub reply: Vec<u8>,
    pub host: Vec<Did>,
    pub controller: Vec<Did>,
}

/// The iWARP connections of a capture.
///
/// # Panics
/// If a stream is not iWARP without markers.
#[must_use]
pub fn iwarp(file: &[u8]) -> Vec<QueuePair> {
    let connections = pcap::connections(file);
    connections
        .iter()
        .map(|connection| {
            let (request, host) = mpa_frame(&connection.from_initiator, b"MPA ID Req Frame");
            let (reply, controller) = mpa_frame(&connection.from_responder, b"MPA ID Rep Frame");
            QueuePair { request, reply, host: segments(host), controller: segments(controller) }
        })
        .collect()
}

/// The private data of the frame a stream begins with, and what follows.
fn mpa_frame<'a>(stream: &'a [u8], key: &[u8; 16]) -> (Vec<u8>, &'a [u8]) {
    let (frame, rest) = stream.split_at(20);
    assert_eq!(&frame[..16], key);
    assert_eq!(frame[16] & 0x80, 0, "no markers");
    let (private_data, rest) = rest.split_at(usize::from(u16::from_be_bytes([frame[18], frame[19]])));
    // The second revision puts IRD and ORD before it.
    let enhanced = if frame[17] == 2 { 4 } else { 0 };
    (private_data[enhanced..].to_vec(), rest)
}

/// What the FPDUs of a stream say. A capture may end within one.
fn segments(mut stream: &[u8]) -> Vec<Did> {
    let mut done = Vec::new();
    let (mut message, mut response) = (Vec::new(), Vec::new());
    while let Some(([high, low], rest)) = stream.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let padding = (2 + length).wrapping_neg() % 4;
        let Some(ulpdu) = rest.get(..length) else { break };
        let Some(behind) = rest.get(length + padding + 4..) else { break };
        stream = behind;
        let (ddp, opcode) = (ulpdu[0], ulpdu[1] & 0xF);
        let last = ddp & 0x40 != 0;
        let tagged = ddp & 0x80 != 0;
        let payload = &ulpdu[if tagged { 14 } else { 18 }..];
        match opcode {
            0x0 => done.push(Did::Write {
                key: be32(ulpdu, 2),
                address: be64(ulpdu, 6),
                bytes: payload.to_vec(),
            }),
            0x1 => done.push(Did::ReadRequest {
                key: be32(payload, 16),
                address: be64(payload, 20),
                length: be32(payload, 12),
            }),
            0x2 => {
                response.extend(payload);
                if last {
                    done.push(Did::ReadResponse(std::mem::take(&mut response)));
                }
            }
            0x3..=0x6 => {
                message.extend(payload);
                if last {
                    let invalidate = matches!(opcode, 0x4 | 0x6).then(|| be32(ulpdu, 2));
                    done.push(Did::Send { message: std::mem::take(&mut message), invalidate });
                }
            }
            0x7 => done.push(Did::Terminate),
            other => panic!("RDMAP opcode {other}"),
        }
    }
    done
}

/// The RoCEv2 connections of a capture, as the connection manager named them.
///
/// # Panics
/// If it holds operations we do not know.
#[must_use]
pub fn roce(file: &[u8]) -> Vec<QueuePair> {
    let mut pairs: Vec<QueuePair> = Vec::new();
    let mut requests: BTreeMap<u32, (u32, Vec<u8>)> = BTreeMap::new();
    // By the machine and the number of the queue pair a packet goes to: which pair, and whether to its
    // controller.
    let mut ends: BTreeMap<(Ipv4Addr, u32), (usize, bool)> = BTreeMap::new();
    let mut parts: BTreeMap<(Ipv4Addr, u32), Parts> = BTreeMap::new();
    for datagram in pcap::datagrams(file).iter().filter(|datagram| datagram.to.port() == ROCE_PORT) {
        let packet = Packet::parse(&datagram.payload);
        let (from, to) = (*datagram.from.ip(), *datagram.to.ip());
        if packet.destination == 1 {
            match connection_manager(packet.body) {
                Some(Cm::Request { id, qp, private_data }) => {
                    requests.insert(id, (qp, private_data));
                }
                Some(Cm::Reply { id, qp, private_data }) => {
                    let (host_qp, request) = requests.remove(&id).expect("a reply has a request");
                    ends.insert((to, host_qp), (pairs.len(), false));
                    ends.insert((from, qp), (pairs.len(), true));
                    pairs.push(QueuePair { request, reply: private_data, ..QueuePair::default() });
                }
                None => {}
            }
        } else if let Some(&(pair, to_controller)) = ends.get(&(to, packet.destination)) {
            let did = parts.entry((to, packet.destination)).or_default().take(&packet);
            let side = if to_controller { &mut pairs[pair].host } else { &mut pairs[pair].controller };
            side.extend(did);
        }
    }
    pairs
}

struct Packet<'a> {
    opcode: u8,
    destination: u32,
    /// Behind the base header, without padding and checksum.
    body: &'a [u8],
}

impl<'a> Packet<'a> {
    fn parse(bytes: &'a [u8]) -> Self {
        let padding = usize::from(bytes[1] >> 4 & 0b11);
        Self {
            opcode: bytes[0],
            destination: be32(bytes, 4) & 0xFF_FFFF,
            body: &bytes[12..bytes.len() - 4 - padding],
        }
    }
}

/// By the identifier the request was given.
enum Cm {
    Request { id: u32, qp: u32, private_data: Vec<u8> },
    Reply { id: u32, qp: u32, private_data: Vec<u8> },
}

/// Connection management, in a management datagram behind the header of unreliable datagrams.
fn connection_manager(body: &[u8]) -> Option<Cm> {
    const REQUEST: u16 = 0x0010;
    const REPLY: u16 = 0x0013;
    let mad = &body[8..];
    let message = &mad[24..];
    match u16::from_be_bytes([mad[16], mad[17]]) {
        // The private data of a request begins with the addresses of rdma_cm.
        REQUEST => Some(Cm::Request {
            id: be32(message, 0),
            qp: be32(message, 32) >> 8,
            private_data: message[140 + 36..232].to_vec(),
        }),
        REPLY => Some(Cm::Reply {
            id: be32(message, 4),
            qp: be32(message, 12) >> 8,
            private_data: message[36..232].to_vec(),
        }),
        _ => None,
    }
}

/// Messages of which the first packets have come.
#[derive(Default)]
struct Parts {
    message: Vec<u8>,
    response: Vec<u8>,
    /// Key and address of the next piece of a Write.
    write: (u32, u64),
}

impl Parts {
    fn take(&mut self, packet: &Packet<'_>) -> Option<Did> {
        let body = packet.body;
        match packet.opcode {
            0x00 | 0x01 => {
                self.message.extend(body);
                None
            }
            0x02 | 0x04 => Some(self.send(body, None)),
            0x16 | 0x17 => Some(self.send(&body[4..], Some(be32(body, 0)))),
            0x06 | 0x0A => {
                self.write = (be32(body, 8), be64(body, 0));
                Some(self.write(&body[16..]))
            }
            0x07 | 0x08 => Some(self.write(body)),
            0x0C => {
                Some(Did::ReadRequest { key: be32(body, 8), address: be64(body, 0), length: be32(body, 12) })
            }
            0x0D => {
                self.response = body[4..].to_vec();
                None
            }
            0x0E => {
                self.response.extend(body);
                None
            }
            0x0F | 0x10 => {
                self.response.extend(&body[4..]);
                Some(Did::ReadResponse(std::mem::take(&mut self.response)))
            }
            0x11 => None,
            other => panic!("transport opcode {other:#x}"),
        }
    }

    fn send(&mut self, last: &[u8], invalidate: Option<u32>) -> Did {
        self.message.extend(last);
        Did::Send { message: std::mem::take(&mut self.message), invalidate }
    }

    fn write(&mut self, bytes: &[u8]) -> Did {
        let (key, address) = self.write;
        self.write.1 += bytes.len() as u64;
        Did::Write { key, address, bytes: bytes.to_vec() }
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
