//! Identify: what a host reads of the controller and its namespaces, and what it insists on.
use crate::queue::{Queue, Status};
use crate::target::{BLOCKS, IN_CAPSULE, OPEN, QUEUE_DEPTH, Target, uuid_of};
use crate::wire::{Sqe, le, name, property_get};
use crate::{Requirement, row};

const INVALID_FIELD: Status = (0, 0x02, true);
const INVALID_NAMESPACE: Status = (0, 0x0B, true);

pub(crate) const ROWS: &[Requirement] = &[
    row(
        "identify-1",
        "Linux, drivers/nvme/host/core.c nvme_check_ctrl_fabric_info",
        "CNTLID at byte 78 is the one Connect gave, or a Linux host gives up",
        controller_identifier,
    ),
    row(
        "identify-2",
        "Linux, drivers/nvme/host/core.c nvme_check_ctrl_fabric_info",
        "KAS at byte 320 is not 0, or a Linux host gives up",
        keep_alive_granularity,
    ),
    row(
        "identify-3",
        "Linux, drivers/nvme/host/core.c nvme_check_ctrl_fabric_info",
        "IOCCSZ at byte 1792 is 64 bytes and the in-capsule data in units of 16, IORCSZ at 1796 is 1",
        capsule_sizes,
    ),
    row(
        "identify-4",
        "Linux, drivers/nvme/host/rdma.c nvme_rdma_setup_ctrl",
        "SGLS at byte 536 has keyed data blocks (bit 2) and ICDOFF at 1800 is 0, or a Linux host gives up",
        keyed_sgls,
    ),
    row(
        "identify-5",
        "NVMe RDMA 1.0, 3.3",
        "bits 1:0 of SGLS are 01b; bit 20 offers in-capsule data",
        sgl_support,
    ),
    row(
        "identify-6",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "MAXCMD at byte 514 is as many commands as a queue holds, SQES and CQES are 66h and 44h",
        queue_entries,
    ),
    row("identify-7", "NVMe Base 2.2, 5.1.13.2.1, figure 313", "VER at byte 80 is the VS property", version),
    row(
        "identify-8",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "SN, MN and FR are ASCII, padded with spaces, and not empty",
        identity_strings,
    ),
    row(
        "identify-9",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "SUBNQN at byte 768 is the name connected to, its field filled with zeros",
        subsystem_name,
    ),
    row(
        "identify-10",
        "Linux, drivers/nvme/host/core.c nvme_init_subsystem",
        "CMIC says that the subsystem may have more ports and controllers, so that a second path is taken",
        more_controllers,
    ),
    row(
        "identify-11",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "CNTRLTYPE at byte 111 is 1: an I/O controller",
        controller_type,
    ),
    row(
        "identify-12",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "MDTS of 8 is 1 MiB; NN bounds the namespaces; MSDBD is 1; the controller is a dynamic one",
        limits,
    ),
    row(
        "identify-13",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "OACS, CRDT and SANICAP offer nothing, so that a host asks for nothing",
        nothing_which_is_not_there,
    ),
    row(
        "identify-14",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "ONCS offers Compare, DSM, Write Zeroes, reservations, Timestamp, Verify, Copy, FUSES the one pair, VWC a cache",
        optional_commands,
    ),
    row(
        "identify-15",
        "NVMe Base 2.2, 5.1.13.2.1, figure 313",
        "CTRATT has host identifiers of 128 bits, which reservations need, and traffic based keep alive; OAES events of \
         namespaces and access",
        attributes,
    ),
    row(
        "identify-16",
        "NVM Command Set 1.2, 4.1.5.1",
        "NSZE, NCAP and NUSE count blocks; format 0 has no metadata and LBADS says 512 or 4096 bytes",
        namespace_sizes,
    ),
    row(
        "identify-17",
        "NVM Command Set 1.2, 4.1.5.1",
        "NMIC says shared, NSATTR write protected where it is, DLFEAT that deallocated blocks read as zeroes",
        namespace_attributes,
    ),
    row(
        "identify-18",
        "NVM Command Set 1.2, 4.1.5.1",
        "of a namespace which is not there all is zero; of a number which none can have nothing is said",
        absent_namespaces,
    ),
    row(
        "identify-19",
        "NVMe Base 2.2, 5.1.13.2.2",
        "the active namespaces are listed in order, those above the one named, and zeros follow",
        active_namespaces,
    ),
    row(
        "identify-20",
        "NVMe Base 2.2, 5.1.13.2.2",
        "a list above FFFFFFFEh or FFFFFFFFh is Invalid Namespace or Format",
        lists_have_an_end,
    ),
    row(
        "identify-21",
        "NVMe Base 2.2, 5.1.13.2.3",
        "a namespace has a UUID, an NGUID and the NVM command set as descriptors, in this form",
        descriptors,
    ),
    row(
        "identify-22",
        "NVMe Base 2.2, 5.1.13.2.3",
        "descriptors of a namespace which is not there are Invalid Namespace or Format",
        descriptors_of_nobody,
    ),
    row(
        "identify-23",
        "Linux, drivers/nvme/host/core.c nvme_ns_info_from_id_cs_indep",
        "the structure of all command sets (CNS 08h) says ready in byte 14, or a Linux host ignores the namespace",
        independent_of_command_sets,
    ),
    row(
        "identify-24",
        "NVM Command Set 1.2, 4.1.5.4",
        "CNS 06h of the NVM command set has no limits on Write Zeroes and Dataset Management",
        command_set_limits,
    ),
    row(
        "identify-25",
        "NVMe Base 2.2, 5.1.13.2.19",
        "the one combination of command sets (CNS 1Ch) is the NVM command set alone",
        command_sets,
    ),
    row(
        "identify-26",
        "NVMe Base 2.2, 5.1.13.1",
        "structures which are not there, and other command sets, are Invalid Field, Do Not Retry",
        unknown_structures,
    ),
    row(
        "identify-27",
        "NVMe Base 2.2, 4.5.6 and 4.5.5",
        "two controllers tell the same of a namespace",
        identities_are_stable,
    ),
    row(
        "identify-28",
        "Linux, drivers/nvme/host/core.c nvme_init_effects",
        "the commands supported and effects log, which LPA offers, can be read as Linux reads it",
        effects_log_is_there,
    ),
];

fn identify(cns: u8, nsid: u32) -> Sqe {
    Sqe::new(0x06).nsid(nsid).byte(40, cns)
}

fn structure(queue: &mut Queue, cns: u8, nsid: u32) -> Vec<u8> {
    queue.fetch(identify(cns, nsid), 4096)
}

fn status(queue: &mut Queue, sqe: Sqe) -> Status {
    queue.read(sqe, 4096).0.status()
}

fn admin() -> Queue {
    Queue::admin(&Target::new()).0
}

fn controller() -> Vec<u8> {
    structure(&mut admin(), 1, 0)
}

fn controller_identifier() {
    let (mut admin, cntlid) = Queue::admin(&Target::new());
    assert_eq!(le(&structure(&mut admin, 1, 0), 78, 2), u64::from(cntlid));
}

fn keep_alive_granularity() {
    assert_eq!(le(&controller(), 320, 2), 10, "a second, in units of 100 ms");
}

fn capsule_sizes() {
    let data = controller();
    assert_eq!(le(&data, 1792, 4), (64 + IN_CAPSULE as u64) / 16);
    assert_eq!(le(&data, 1796, 4), 1);
}

fn keyed_sgls() {
    let data = controller();
    assert_eq!(le(&data, 536, 4) >> 2 & 1, 1);
    assert_eq!(le(&data, 1800, 2), 0);
}

fn sgl_support() {
    let sgls = le(&controller(), 536, 4);
    assert_eq!((sgls & 0b11, sgls >> 20 & 1), (0b01, 1));
    // Neither longer data pointers than transfers, nor metadata, nor bit buckets.
    assert_eq!(sgls & !0x0010_0005, 0);
}

fn queue_entries() {
    let data = controller();
    assert_eq!(le(&data, 514, 2), u64::from(QUEUE_DEPTH));
    assert_eq!((data[512], data[513]), (0x66, 0x44));
}

fn version() {
    let mut admin = admin();
    let version = admin.command(property_get(8, 0)).succeeded().result();
    assert_eq!(le(&structure(&mut admin, 1, 0), 80, 4), version);
}

fn identity_strings() {
    let data = controller();
    for range in [4..24, 24..64, 64..72] {
        let text = &data[range];
        assert!(text.iter().all(|byte| (0x20..=0x7E).contains(byte)), "{text:02x?}");
        assert_ne!(text[0], b' ');
    }
    assert_eq!(data[4..24], *b"SERIAL-1            ");
}

fn subsystem_name() {
    assert_eq!(controller()[768..1024], name(OPEN));
}

fn more_controllers() {
    let cmic = controller()[76];
    assert_eq!(cmic & 0b11, 0b11);
}

fn controller_type() {
    assert_eq!(controller()[111], 1);
}

fn limits() {
    let data = controller();
    assert_eq!((data[77], data[1803], data[1802] & 1), (8, 1, 0));
    assert!(le(&data, 516, 4) >= 3, "NN");
    assert!((1..=le(&data, 516, 4)).contains(&le(&data, 540, 4)), "MNAN");
}

fn nothing_which_is_not_there() {
    let data = controller();
    for (offset, size) in [(256, 2), (128, 2), (328, 4), (1804, 2), (524, 1)] {
        assert_eq!(le(&data, offset, size), 0, "byte {offset}");
    }
    assert_eq!(data[3072..], [0; 1024], "vendor specific");
}

fn optional_commands() {
    let data = controller();
    assert_eq!(le(&data, 520, 2), 0b1_1110_1101);
    assert_eq!(le(&data, 522, 2), 1);
    // ACWU: four blocks of 4 KiB, 0's based.
    assert_eq!(le(&data, 532, 2), 3);
    assert_eq!(data[525], 0b101, "a cache, and no Flush of all namespaces at once");
}

fn attributes() {
    let data = controller();
    assert_eq!(le(&data, 96, 4), 0x4_0041);
    assert_eq!(le(&data, 92, 4), 0x900);
}

fn namespace_sizes() {
    let mut admin = admin();
    for (nsid, shift) in [(1, 9), (2, 12)] {
        let data = structure(&mut admin, 0, nsid);
        let blocks = (BLOCKS * 512) >> shift;
        assert_eq!([0, 8, 16].map(|at| le(&data, at, 8)), [blocks; 3]);
        assert_eq!((data[25], data[26]), (0, 0), "one format, which is in use");
        assert_eq!(data[128..132], [0, 0, shift, 0]);
        assert_eq!(le(&data, 48, 8), BLOCKS * 512, "NVMCAP");
    }
}

fn namespace_attributes() {
    let mut admin = admin();
    for nsid in [1, 2, 3] {
        let data = structure(&mut admin, 0, nsid);
        assert_eq!(data[30] & 1, 1, "NMIC");
        assert_eq!(data[99] & 1, u8::from(nsid == 3), "NSATTR");
        assert_eq!(data[33] & 0b111, 0b001, "DLFEAT");
        assert_eq!(
            (data[27], data[28], data[29], data[31]),
            (0, 0, 0, 0xFF),
            "no metadata, all reservations"
        );
    }
}

fn absent_namespaces() {
    let mut admin = admin();
    assert_eq!(structure(&mut admin, 0, 4), [0; 4096]);
    for nsid in [0, 1025, u32::MAX] {
        assert_eq!(status(&mut admin, identify(0, nsid)), INVALID_NAMESPACE, "namespace {nsid:#x}");
    }
}

fn numbers(list: &[u8]) -> Vec<u64> {
    let numbers: Vec<u64> = (0..1024).map(|index| le(list, index * 4, 4)).collect();
    let count = numbers.iter().position(|&nsid| nsid == 0).expect("zeros at the end");
    assert!(numbers[count..].iter().all(|&nsid| nsid == 0));
    numbers[..count].to_vec()
}

fn active_namespaces() {
    let mut admin = admin();
    for (after, expected) in [(0, &[1, 2, 3][..]), (1, &[2, 3]), (2, &[3]), (3, &[]), (1000, &[])] {
        assert_eq!(numbers(&structure(&mut admin, 2, after)), expected);
        // The same for the NVM command set.
        assert_eq!(numbers(&structure(&mut admin, 7, after)), expected);
    }
}

fn lists_have_an_end() {
    let mut admin = admin();
    for nsid in [u32::MAX - 1, u32::MAX] {
        assert_eq!(status(&mut admin, identify(2, nsid)), INVALID_NAMESPACE);
    }
}

fn descriptors() {
    let data = structure(&mut admin(), 3, 2);
    let uuid = uuid_of(2);
    let mut expected = vec![3, 16, 0, 0];
    expected.extend(uuid.as_bytes());
    expected.extend([2, 16, 0, 0]);
    expected.extend(uuid.as_bytes());
    expected.extend([4, 1, 0, 0, 0]);
    expected.resize(4096, 0);
    assert_eq!(data, expected);
    // The same NGUID stands in the namespace's own structure.
    assert_eq!(structure(&mut admin(), 0, 2)[104..120], *uuid.as_bytes());
}

fn descriptors_of_nobody() {
    let mut admin = admin();
    for nsid in [0, 4, u32::MAX] {
        assert_eq!(status(&mut admin, identify(3, nsid)), INVALID_NAMESPACE);
    }
}

fn independent_of_command_sets() {
    let mut admin = admin();
    for nsid in [1, 3] {
        let data = structure(&mut admin, 8, nsid);
        assert_eq!(data[14] & 1, 1, "NSTAT");
        assert_eq!(data[1] & 1, 1, "NMIC");
        assert_eq!(data[8] & 1, u8::from(nsid == 3), "NSATTR");
    }
}

fn command_set_limits() {
    let data = structure(&mut admin(), 6, 0);
    assert_eq!(data[0], 8, "VSL: Verify is bound as transfers are");
    assert_eq!(data[1..], [0; 4095]);
}

fn command_sets() {
    let data = structure(&mut admin(), 0x1C, 0);
    assert_eq!(le(&data, 0, 8), 1);
    assert_eq!(data[8..], [0; 4088]);
}

fn unknown_structures() {
    let mut admin = admin();
    // NVM sets, formats, primary and secondary controllers, granularity, UUIDs, domains, endurance groups, ports.
    for cns in [0x04, 0x09, 0x0A, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1D, 0x1E, 0x1F, 0x20, 0xFF] {
        assert_eq!(status(&mut admin, identify(cns, 1)), INVALID_FIELD, "CNS {cns:#04x}");
    }
    for cns in [0x05, 0x06, 0x07, 0x1A, 0x1B] {
        assert_eq!(status(&mut admin, identify(cns, 1).byte(47, 2)), INVALID_FIELD, "CNS {cns:#04x}, zoned");
    }
}

fn identities_are_stable() {
    let target = Target::new();
    let (mut one, _) = Queue::admin(&target);
    let (mut two, _) = Queue::admin(&target);
    for cns in [0, 3, 8] {
        assert_eq!(structure(&mut one, cns, 1), structure(&mut two, cns, 1));
    }
}

fn effects_log_is_there() {
    let mut admin = admin();
    assert_eq!(structure(&mut admin, 1, 0)[261] >> 1 & 1, 1, "LPA bit 1");
    // All 4096 bytes at once, of no namespace in particular, of the NVM command set.
    let log = admin.fetch(Sqe::new(2).byte(40, 5).word(42, 1023), 4096);
    for opcode in [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18] {
        assert_eq!(le(&log, opcode * 4, 4) & 1, 1, "admin command {opcode:#x}");
    }
    for opcode in [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C, 0x19] {
        let effects = le(&log, 1024 + opcode * 4, 4);
        let changes = [0x01, 0x08, 0x09, 0x19].contains(&opcode);
        assert_eq!(effects & 0b11, if changes { 0b11 } else { 0b01 }, "I/O command {opcode:#x}");
    }
    assert_eq!(le(&log, 1024 + 0x04 * 4, 4), 0, "Write Uncorrectable");
}
