//! Packets of a capture file: TCP, which may carry iWARP, and RoCEv2 over UDP.
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};

/// One TCP segment.
pub(super) struct Packet {
    /// Since the first packet.
    pub(super) time: Duration,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    pub(super) is_first: bool,
    pub(super) payload: Vec<u8>,
}

const PCAP: [[u8; 4]; 4] =
    [[0xD4, 0xC3, 0xB2, 0xA1], [0xA1, 0xB2, 0xC3, 0xD4], [0x4D, 0x3C, 0xB2, 0xA1], [0xA1, 0xB2, 0x3C, 0x4D]];
const PCAPNG: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];

pub(super) fn is_capture(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|magic| PCAP.contains(magic) || *magic == PCAPNG)
}

/// One RoCEv2 packet: what the UDP datagram carried.
pub(super) struct Datagram {
    /// Since the first packet.
    pub(super) time: Duration,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) payload: Vec<u8>,
}

/// What a capture holds, oldest first.
#[derive(Default)]
pub(super) struct Capture {
    pub(super) segments: Vec<Packet>,
    pub(super) roce: Vec<Datagram>,
    /// Packets in all.
    pub(super) packets: usize,
}

/// Where RoCEv2 goes (InfiniBand Architecture, annex A17).
const ROCE_PORT: u16 = 4791;

/// What a capture holds.
pub(super) fn read(bytes: &[u8]) -> anyhow::Result<Capture> {
    let frames = if bytes.starts_with(&PCAPNG) { frames_of_pcapng(bytes) } else { frames_of_pcap(bytes) };
    let frames = frames.context("the capture is damaged")?;
    let mut capture = Capture { packets: frames.len(), ..Capture::default() };
    let Some(begin) = frames.first().map(|frame| frame.time) else { return Ok(capture) };
    for frame in frames {
        let sliced = match frame.link {
            DataLink::ETHERNET => SlicedPacket::from_ethernet(&frame.bytes),
            DataLink::LINUX_SLL => SlicedPacket::from_linux_sll(&frame.bytes),
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => SlicedPacket::from_ip(&frame.bytes),
            other => bail!("packets of link type {other:?} cannot be read; capture on an IP interface"),
        };
        if let Ok(sliced) = sliced {
            capture.take(&sliced, frame.time.saturating_sub(begin));
        }
    }
    Ok(capture)
}

impl Capture {
    fn take(&mut self, sliced: &SlicedPacket<'_>, time: Duration) {
        let (from, to): (IpAddr, IpAddr) = match sliced.net.as_ref() {
            Some(NetSlice::Ipv4(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            Some(NetSlice::Ipv6(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            _ => return,
        };
        match &sliced.transport {
            Some(TransportSlice::Tcp(tcp)) => self.segments.push(Packet {
                time,
                from: SocketAddr::new(from, tcp.source_port()),
                to: SocketAddr::new(to, tcp.destination_port()),
                sequence: tcp.sequence_number(),
                is_first: tcp.syn(),
                payload: tcp.payload().to_vec(),
            }),
            Some(TransportSlice::Udp(udp)) if udp.destination_port() == ROCE_PORT => {
                self.roce.push(Datagram { time, from, to, payload: udp.payload().to_vec() });
            }
            _ => {}
        }
    }

    /// In words, if nothing of it could be decoded.
    pub(super) fn summary(&self) -> String {
        let others = self.packets - self.segments.len() - self.roce.len();
        format!(
            "{} packets: {} TCP segments, {} RoCEv2 packets (UDP port {ROCE_PORT}), {others} others",
            self.packets,
            self.segments.len(),
            self.roce.len()
        )
    }
}

struct Frame {
    time: Duration,
    link: DataLink,
    bytes: Vec<u8>,
}

fn frames_of_pcap(bytes: &[u8]) -> anyhow::Result<Vec<Frame>> {
    let mut reader = PcapReader::new(bytes)?;
    let link = reader.header().datalink;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        frames.push(Frame { time: packet.timestamp, link, bytes: packet.data.into_owned() });
    }
    Ok(frames)
}

fn frames_of_pcapng(bytes: &[u8]) -> anyhow::Result<Vec<Frame>> {
    let mut reader = PcapNgReader::new(bytes)?;
    let mut links = Vec::new();
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        match block? {
            Block::InterfaceDescription(interface) => links.push(interface.linktype),
            Block::EnhancedPacket(packet) => {
                let interface = usize::try_from(packet.interface_id)?;
                let link = *links.get(interface).context("a packet of an interface nobody described")?;
                frames.push(Frame { time: packet.timestamp, link, bytes: packet.data.into_owned() });
            }
            _ => {}
        }
    }
    Ok(frames)
}
