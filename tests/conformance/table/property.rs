//! Properties, and the handshakes a host does with them.
use crate::queue::{Queue, Status};
use crate::target::{OPEN, QUEUE_DEPTH, Target};
use crate::wire::{Sqe, property_get, property_set};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);

const CAP: u32 = 0x00;
const VS: u32 = 0x08;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1C;
const CRTO: u32 = 0x68;

/// CC as hosts enable: entries of 64 and 16 bytes, the NVM command set.
const ENABLE: u64 = 0x0046_0001;

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "property-1",
        "NVMe Base 2.2, 3.1.4, figure 36",
        "CAP: MQES 0's based, CQR, round robin only, TO not 0, stride 0, the NVM command set, pages of 4 KiB",
        capabilities,
    ),
    row(
        "property-2",
        "NVMe Base 2.2, 3.1.4, figure 36 (CRMS)",
        "a controller of revision 2.0 or later sets CRWMS, and CRTO says how long that takes at most",
        ready_modes,
    ),
    row(
        "property-3",
        "NVMe Base 2.2, 3.1.4, figure 37",
        "VS has the major version in bits 31:16, the minor in 15:8, and is 2.0 or later",
        version,
    ),
    row(
        "property-4",
        "NVMe Base 2.2, 6.5, figure 553",
        "a property of 4 bytes comes in dword 0, dword 1 being 0",
        properties_of_four_bytes,
    ),
    row(
        "property-5",
        "NVMe Base 2.2, 6.5, figure 552",
        "a size which is not the property's is Invalid Field, Do Not Retry",
        properties_have_a_size,
    ),
    row(
        "property-6",
        "NVMe Base 2.2, 6.5",
        "an offset at which no property is, or one of memory-based controllers, is Invalid Field",
        absent_properties,
    ),
    row(
        "property-7",
        "NVMe Base 2.2, 6.6",
        "setting what can only be read, or is not there, is Invalid Field and changes nothing",
        read_only_properties,
    ),
    row(
        "property-8",
        "NVMe Base 2.2, 3.1.4, figures 41 and 42",
        "after Connect, CC and CSTS are 0",
        reset_values,
    ),
    row(
        "property-9",
        "NVMe Base 2.2, 3.5.2",
        "a controller is enabled by one write of CC, or configured first and then enabled; then RDY is 1",
        enable,
    ),
    row(
        "property-10",
        "NVMe Base 2.2, 3.1.4, figure 41",
        "enabling with other entry sizes, pages, arbitration or command sets sets CFS, until EN is 0",
        impossible_configurations,
    ),
    row(
        "property-11",
        "NVMe Base 2.2, 3.1.3.3",
        "a discovery controller has no entries of I/O queues, and is enabled without their sizes",
        discovery_is_enabled_without_sizes,
    ),
    row(
        "property-12",
        "NVMe Base 2.2, 3.6.2",
        "normal and abrupt shutdown end with SHST 10b, and SHN 00b clears it",
        shutdown,
    ),
    row(
        "property-13",
        "NVMe Base 2.2, 3.7.2",
        "EN from 1 to 0 clears RDY and ends the I/O queues; the admin queue stays and can enable again",
        reset,
    ),
    row(
        "property-14",
        "NVMe Base 2.2, 3.3.2.3",
        "admin commands before RDY are Command Sequence Error; properties can be had",
        nothing_before_ready,
    ),
    row(
        "property-15",
        "NVMe Base 2.2, 5.1.2",
        "a reset lets go of held event requests without a response, and as many can be held again",
        reset_lets_go_of_event_requests,
    ),
];

fn get(queue: &mut Queue, offset: u32) -> u64 {
    queue.command(property_get(offset, u8::from(offset == CAP))).succeeded().result()
}

fn set_cc(queue: &mut Queue, value: u64) -> u64 {
    queue.command(property_set(CC, value)).succeeded();
    get(queue, CSTS)
}

/// An admin queue whose controller is not enabled.
fn admin() -> Queue {
    Queue::connect_admin(&Target::new(), OPEN, 0).0
}

fn capabilities() {
    let cap = get(&mut admin(), CAP);
    let bits = |high: u32, low: u32| cap >> low & ((1 << (high - low + 1)) - 1);
    assert_eq!(bits(15, 0), u64::from(QUEUE_DEPTH) - 1, "MQES");
    assert_eq!(bits(16, 16), 1, "CQR");
    assert_eq!(bits(18, 17), 0, "AMS");
    assert_ne!(bits(31, 24), 0, "TO");
    assert_eq!(bits(35, 32), 0, "DSTRD");
    assert_eq!(bits(37, 37), 1, "the NVM command set");
    assert_eq!(bits(51, 48), 0, "MPSMIN");
}

fn ready_modes() {
    let mut queue = admin();
    assert_eq!(get(&mut queue, CAP) >> 59 & 0b11, 0b01, "CRWMS without CRIMS");
    let timeouts = get(&mut queue, CRTO);
    assert_ne!(timeouts & 0xFFFF, 0, "CRWMT");
}

fn version() {
    let version = get(&mut admin(), VS);
    assert!((0x0002_0000..=0x0002_0300).contains(&version), "{version:#x}");
}

fn properties_of_four_bytes() {
    let mut queue = admin();
    set_cc(&mut queue, ENABLE);
    for offset in [VS, CC, CSTS] {
        let response = queue.command(property_get(offset, 0)).succeeded();
        assert_ne!(response.entry[..4], [0; 4]);
        assert_eq!(response.entry[4..8], [0; 4]);
    }
}

fn properties_have_a_size() {
    let mut queue = admin();
    for (offset, size) in [(CAP, 0), (VS, 1), (CC, 1), (CSTS, 1), (CC, 2), (CC, 7), (CAP, 3)] {
        let response = queue.command(property_get(offset, size));
        assert_eq!(response.status(), INVALID_FIELD, "{offset:#x}, size {size}");
    }
    assert_eq!(queue.command(property_set(CC, ENABLE).byte(40, 1)).status(), INVALID_FIELD);
    assert_eq!(get(&mut queue, CC), 0);
}

fn absent_properties() {
    let mut queue = admin();
    // The last are the admin queue's attributes and addresses, and the interrupt masks.
    for offset in [0x04, 0x18, 0x1000, u32::MAX, 0x0C, 0x10, 0x24, 0x28, 0x30] {
        for size in [0, 1] {
            assert_eq!(queue.command(property_get(offset, size)).status(), INVALID_FIELD, "{offset:#x}");
        }
    }
}

fn read_only_properties() {
    let mut queue = admin();
    for offset in [CAP, VS, CSTS, CRTO, 0x0C, 0x24, u32::MAX] {
        for size in [0, 1] {
            let sqe = property_set(offset, 1).byte(40, size);
            assert_eq!(queue.command(sqe).status(), INVALID_FIELD, "{offset:#x}");
        }
    }
    assert_eq!(get(&mut queue, CSTS), 0);
}

fn reset_values() {
    let mut queue = admin();
    assert_eq!((get(&mut queue, CC), get(&mut queue, CSTS)), (0, 0));
}

fn enable() {
    for values in [&[ENABLE][..], &[0x0046_0000, ENABLE], &[0x0046_0060, 0x0046_0061]] {
        let mut queue = admin();
        let (last, before) = values.split_last().expect("some");
        for &value in before {
            assert_eq!(set_cc(&mut queue, value), 0);
        }
        assert_eq!(set_cc(&mut queue, *last), 1);
        assert_eq!(get(&mut queue, CC), *last);
    }
}

fn impossible_configurations() {
    // IOSQES, IOCQES, MPS, AMS, and command sets which are not there.
    for value in [0x0047_0001, 0x0036_0001, 0x0046_0081, 0x0046_0801, 0x0046_0011, 0x0046_0071] {
        let mut queue = admin();
        assert_eq!(set_cc(&mut queue, value), 0b10, "{value:#x}");
        assert_eq!(set_cc(&mut queue, 0), 0);
        assert_eq!(set_cc(&mut queue, ENABLE), 1);
    }
}

fn discovery_is_enabled_without_sizes() {
    let target = Target::new();
    let (mut queue, _) = Queue::connect_admin(&target, "nqn.2014-08.org.nvmexpress.discovery", 0);
    assert_eq!(set_cc(&mut queue, 1), 1);
}

fn shutdown() {
    for kind in [0b01, 0b10] {
        let (mut queue, _) = Queue::admin(&Target::new());
        let status = set_cc(&mut queue, ENABLE | kind << 14);
        assert_eq!(status >> 2 & 0b11, 0b10, "SHST");
        assert_eq!(status & 0b10, 0, "CFS");
        assert_eq!(set_cc(&mut queue, 0x0046_0000) >> 2 & 0b11, 0);
    }
}

fn reset() {
    let target = Target::new();
    let (mut admin, cntlid) = Queue::admin(&target);
    let io = Queue::io(&target, cntlid, 1);
    assert_eq!(set_cc(&mut admin, 0x0046_0000), 0);
    assert!(io.peer.is_over() && !admin.peer.is_over());
    assert_eq!(set_cc(&mut admin, ENABLE), 1);
    Queue::io(&target, cntlid, 1).command(Sqe::new(0).nsid(1)).succeeded();
}

fn nothing_before_ready() {
    let mut queue = admin();
    for sqe in [Sqe::new(0x18), Sqe::new(0x0C), Sqe::new(0x09).byte(40, 7), Sqe::new(0x0A).byte(40, 7)] {
        assert_eq!(queue.command(sqe).status(), (0, 0x0C, true));
    }
    assert_eq!(queue.read(Sqe::new(6).byte(40, 1), 4096).0.status(), (0, 0x0C, true));
    assert_eq!(get(&mut queue, CSTS), 0);
}

fn reset_lets_go_of_event_requests() {
    let (mut queue, _) = Queue::admin(&Target::new());
    for _ in 0..10 {
        let held = [(); 4].map(|()| queue.submit(Sqe::new(0x0C), &[]));
        set_cc(&mut queue, 0x0046_0000);
        set_cc(&mut queue, ENABLE);
        assert!(held.iter().all(|&cid| queue.poll(cid).is_none()));
    }
}
