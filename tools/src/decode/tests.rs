//! Captures of stock Linux kernels, and bytes by hand, in words.
use std::path::Path;

use super::*;

fn captured(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors").join(name);
    let bytes = fs::read(path).unwrap();
    assert!(capture::is_capture(&bytes));
    lines_of(&capture::read(&bytes).unwrap()).iter().map(text).collect()
}

#[test]
fn a_kernel_connecting_to_a_kernel_is_read_to_the_end() {
    let lines = captured("nvme-siw-loopback.pcap");
    assert!(lines[0].contains("MPA: request, revision 2"), "{}", lines[0]);
    assert!(lines[1].contains("MPA: reply"), "{}", lines[1]);
    assert!(lines[2].contains("Send: Connect"), "{}", lines[2]);
    for part in
        ["RDMA Read Request: ", "RDMA Read Response: ", "RDMA Write: ", "invalidates key", "Identify", "Read"]
    {
        assert!(lines.iter().any(|line| line.contains(part)), "no {part}");
    }
    assert!(!lines.iter().any(|line| line.contains("nothing more can be read")));
}

#[test]
fn a_kernel_connecting_over_roce_is_read_to_the_end() {
    let lines = captured("nvme-rxe-roce.pcap");
    // Something else than NVMe was tried before.
    let begin = lines.iter().position(|line| line.contains("CM: ConnectRequest to port 4420")).unwrap();
    let lines = &lines[begin..];
    assert!(lines[0].contains("queue 0, 32 commands"), "{}", lines[0]);
    assert!(lines[1].contains("CM: ConnectReply"), "{}", lines[1]);
    assert!(lines[3].contains("Send: Connect"), "{}", lines[3]);
    for part in ["RDMA Read Request: ", "RDMA Read Response: ", "RDMA Write: ", "invalidates key", "Identify"]
    {
        assert!(lines.iter().any(|line| line.contains(part)), "no {part}");
    }
    let commands = lines.iter().filter(|line| line.contains("Send: ")).count();
    assert!(commands > 40, "{commands}");
    assert!(!lines.iter().any(|line| line.contains("no capsule")));
}

#[test]
fn a_capture_without_a_message_is_told_by_what_it_holds() {
    let capture = capture::Capture { packets: 3, ..capture::Capture::default() };
    assert_eq!(capture.summary(), "3 packets: 0 TCP segments, 0 RoCEv2 packets (UDP port 4791), 3 others");
    assert!(!Line::new("stream", String::new()).is_a_message());
}

#[test]
fn a_crc_is_verified_and_a_terminate_is_told() {
    let lines = captured("siw-crc-pair-with-terminate.pcap");
    assert!(lines[0].contains(", CRC"), "{}", lines[0]);
    assert!(!lines.iter().any(|line| line.contains("CRC of the next message is wrong")));
    assert!(lines.iter().any(|line| line.contains("Terminate: ")));
}

#[test]
fn segments_out_of_order_and_sent_again_make_the_same_stream() {
    let bytes =
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/nvme-siw-loopback.pcap"));
    let mut packets = capture::read(&bytes.unwrap()).unwrap().segments;
    let whole = |packets: &[capture::Packet]| {
        let mut lines: Vec<_> = conversation::lines(packets)
            .into_iter()
            .map(|line| (line.from.unwrap_or_default(), line.layer, line.text))
            .collect();
        // Between the two directions the order is the capture's; within one it is the stream's.
        lines.sort_by(|a, b| a.0.cmp(&b.0));
        lines
    };
    let expected = whole(&packets);
    let carries = |packet: &capture::Packet| packet.payload.len() > 1000;
    let swapped: Vec<usize> = (1..packets.len())
        .filter(|at| {
            carries(&packets[*at]) && carries(&packets[at - 1]) && packets[*at].from == packets[at - 1].from
        })
        .collect();
    assert!(!swapped.is_empty());
    for at in swapped {
        packets.swap(at - 1, at);
    }
    let again = packets.iter().find(|packet| carries(packet)).unwrap();
    let again = capture::Packet { payload: again.payload.clone(), ..*again };
    packets.push(again);
    assert_eq!(whole(&packets), expected);
}

#[test]
fn any_bytes_are_survived() {
    let mut state = 1_u64;
    for length in 0..2000 {
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..length {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push((state >> 56) as u8);
        }
        direction::lines_of_stream(&bytes, QueueKind::Io);
        let mut capture =
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/siw-user-net-host.pcap"))
                .unwrap();
        for byte in bytes.iter().take(40) {
            let at = (state as usize).wrapping_mul(usize::from(*byte) + 1) % capture.len();
            capture[at] ^= byte;
        }
        if let Ok(capture) = capture::read(&capture) {
            lines_of(&capture);
        }
        roce::any_packet_is_survived(&bytes);
    }
}

#[test]
fn hexadecimal_text_is_read_in_any_grouping() {
    assert_eq!(hex_bytes(b"0x01 02:03\n0405,06").unwrap(), [1, 2, 3, 4, 5, 6]);
    assert!(hex_bytes(b"012").is_err());
    assert!(hex_bytes(b"hello").is_err());
    assert!(hex_bytes(&[0xFF]).is_err());
}
