//! Captured packets: the pcap file format, Ethernet, IPv4, UDP, and TCP put together again.
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

const MAGIC_LITTLE_ENDIAN: u32 = 0xA1B2_C3D4;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const ETHERNET_HEADER: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// The vectors beside the tests.
///
/// # Panics
/// If there is no such file.
#[must_use]
pub fn vector(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One UDP datagram.
#[derive(Clone, Debug)]
pub struct Datagram {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub payload: Vec<u8>,
}

/// One TCP connection whose beginning was captured, as the two streams of bytes it carried.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Who opened it.
    pub initiator: SocketAddrV4,
    pub responder: SocketAddrV4,
    pub from_initiator: Vec<u8>,
    pub from_responder: Vec<u8>,
}

/// Every UDP datagram of a capture, in order.
///
/// # Panics
/// If it is no capture.
#[must_use]
pub fn datagrams(file: &[u8]) -> Vec<Datagram> {
    let packets = ipv4_packets(file);
    let udp = packets.into_iter().filter(|packet| packet.protocol == PROTOCOL_UDP);
    udp.map(|packet| {
        let length = usize::from(be16(packet.payload, 4));
        let (from, to) = packet.ends();
        Datagram { from, to, payload: packet.payload[8..length].to_vec() }
    })
    .collect()
}

/// Every TCP connection of a capture, in the order they were opened.
///
/// # Panics
/// If it is no capture, or bytes of a stream were not captured.
#[must_use]
pub fn connections(file: &[u8]) -> Vec<Connection> {
    let mut connections = Vec::new();
    let mut streams: BTreeMap<(SocketAddrV4, SocketAddrV4), TcpStream> = BTreeMap::new();
    for packet in ipv4_packets(file).iter().filter(|packet| packet.protocol == PROTOCOL_TCP) {
        let (from, to) = packet.ends();
        let sequence = u32::from_be_bytes(packet.payload[4..8].try_into().expect("four bytes"));
        let header = usize::from(packet.payload[12] >> 4) * 4;
        let flags = packet.payload[13];
        if flags & SYN != 0 {
            let stream = TcpStream { next: sequence.wrapping_add(1), bytes: Vec::new() };
            if streams.insert((from, to), stream).is_none() && flags & ACK == 0 {
                connections.push((from, to));
            }
        } else if let Some(stream) = streams.get_mut(&(from, to)) {
            stream.take(sequence, &packet.payload[header..]);
        }
    }
    let mut bytes_of = |ends| streams.remove(&ends).map(|stream| stream.bytes).unwrap_or_default();
    let connection = |(initiator, responder)| Connection {
        initiator,
        responder,
        from_initiator: bytes_of((initiator, responder)),
        from_responder: bytes_of((responder, initiator)),
    };
    connections.into_iter().map(connection).collect()
}

struct TcpStream {
    next: u32,
    bytes: Vec<u8>,
}

impl TcpStream {
    /// Captures are made on one end, so segments come in order, if at times once more.
    fn take(&mut self, sequence: u32, segment: &[u8]) {
        let known = usize::try_from(self.next.wrapping_sub(sequence)).expect("a usize has 32 bits");
        if known < 1 << 31 {
            let new = &segment[known.min(segment.len())..];
            self.bytes.extend(new);
            self.next = self.next.wrapping_add(u32::try_from(new.len()).expect("a packet is short"));
        } else {
            assert!(segment.is_empty(), "a segment was not captured");
        }
    }
}

/// The payload begins with the TCP or UDP header.
struct Ipv4Packet<'a> {
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    payload: &'a [u8],
}

impl Ipv4Packet<'_> {
    fn ends(&self) -> (SocketAddrV4, SocketAddrV4) {
        let from = SocketAddrV4::new(self.from, be16(self.payload, 0));
        (from, SocketAddrV4::new(self.to, be16(self.payload, 2)))
    }
}

fn ipv4_packets(file: &[u8]) -> Vec<Ipv4Packet<'_>> {
    assert_eq!(le32(file, 0), MAGIC_LITTLE_ENDIAN, "a pcap file of this byte order");
    let mut packets = Vec::new();
    let mut rest = &file[FILE_HEADER..];
    while !rest.is_empty() {
        let length = usize::try_from(le32(rest, 8)).expect("a usize has 32 bits");
        let (frame, behind) = rest[RECORD_HEADER..].split_at(length);
        rest = behind;
        if be16(frame, 12) == ETHERTYPE_IPV4 {
            packets.push(ipv4_packet(&frame[ETHERNET_HEADER..]));
        }
    }
    packets
}

fn ipv4_packet(bytes: &[u8]) -> Ipv4Packet<'_> {
    let header = usize::from(bytes[0] & 0xF) * 4;
    let total = usize::from(be16(bytes, 2));
    let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes"));
    Ipv4Packet { from: address(12), to: address(16), protocol: bytes[9], payload: &bytes[header..total] }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}
