//! Packets of a capture file: only TCP over IP matters here.
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

/// The TCP segments of a capture, oldest first.
pub(super) fn packets(bytes: &[u8]) -> anyhow::Result<Vec<Packet>> {
    let frames = if bytes.starts_with(&PCAPNG) { frames_of_pcapng(bytes) } else { frames_of_pcap(bytes) };
    let frames = frames.context("the capture is damaged")?;
    let Some(begin) = frames.first().map(|frame| frame.time) else { return Ok(Vec::new()) };
    let mut packets = Vec::new();
    for frame in frames {
        let sliced = match frame.link {
            DataLink::ETHERNET => SlicedPacket::from_ethernet(&frame.bytes),
            DataLink::LINUX_SLL => SlicedPacket::from_linux_sll(&frame.bytes),
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => SlicedPacket::from_ip(&frame.bytes),
            other => bail!("packets of link type {other:?} cannot be read; capture on an IP interface"),
        };
        let packet = sliced.ok().and_then(|sliced| segment(&sliced, frame.time.saturating_sub(begin)));
        packets.extend(packet);
    }
    Ok(packets)
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

fn segment(sliced: &SlicedPacket<'_>, time: Duration) -> Option<Packet> {
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { return None };
    let (from, to): (IpAddr, IpAddr) = match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        _ => return None,
    };
    Some(Packet {
        time,
        from: SocketAddr::new(from, tcp.source_port()),
        to: SocketAddr::new(to, tcp.destination_port()),
        sequence: tcp.sequence_number(),
        is_first: tcp.syn(),
        payload: tcp.payload().to_vec(),
    })
}
