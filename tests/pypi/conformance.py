"""Probes of the controller: what `nvmeof` never sends, and what a decent host never would."""

import os
import struct

from peer import iwarp, nvme
from peer.nvme import Host, Queue, keyed_sgl, status, succeed

INVALID_OPCODE, INVALID_FIELD, COMMAND_SEQUENCE = (0, 0x01), (0, 0x02), (0, 0x0C)
INVALID_NAMESPACE, SGL_LENGTH, SGL_TYPE, SGL_OFFSET = (0, 0x0B), (0, 0x0F), (0, 0x11), (0, 0x16)
READ_ONLY, LBA_RANGE, COMPARE_FAILURE = (0, 0x20), (0, 0x80), (2, 0x85)
INVALID_FORMAT, INVALID_PARAMETERS, EVENT_LIMIT = (1, 0x80), (1, 0x82), (1, 0x05)
BLOCK = 512
BLOCKS = (64 << 20) // BLOCK


def host(target, **options):
    return Host(target.address, target.nqn, **options)


def expect(completion, *wanted):
    got = status(completion)
    assert got in wanted, f"status {got[0]}/{got[1]:#04x}, expected {' or '.join(f'{t}/{c:#04x}' for t, c in wanted)}"
    return completion


def io(queue, opcode, slba, blocks, nsid=1, control=0, **options):
    dwords = (slba & 0xFFFFFFFF, slba >> 32, (blocks - 1) | control << 16)
    return queue.execute(opcode, nsid, dwords, **options)


def write(queue, slba, data, **options):
    return io(queue, nvme.WRITE, slba, len(data) // BLOCK, out=data, **options)


def read(queue, slba, blocks, **options):
    return io(queue, nvme.READ, slba, blocks, into=blocks * BLOCK, **options)


# Connecting ---------------------------------------------------------------------------------------------------------


def test_every_way_to_start_mpa(target):
    """MPA revisions 1 and 2, CRC on and off, each ready-to-receive message"""
    for options in (
        {"crc": False},
        {"crc": True},
        {"revision": 1},
        {"revision": 1, "crc": False},
        {"ready": "write"},
        {"ready": "read"},
        {"ready": "read", "crc": False},
        {"ird": 1},
    ):
        with host(target, **options) as connected:
            data = os.urandom(8192)
            succeed(write(connected.io[0], 64, data))
            assert succeed(read(connected.io[0], 64, 16)).data == data


def test_refused_private_data(target):
    """A CM request that cannot be served is rejected with the reason"""
    cases = (
        (nvme.private_data(0, 32)[:31], 1),
        (nvme.private_data(0, 32, recfmt=1), 2),
        (nvme.private_data(0, 65535, hsqsize=65535), 4),
    )
    for private_data, reason in cases:
        try:
            iwarp.Connection(target.address, private_data)
        except iwarp.Refused as refused:
            assert struct.unpack("<HH", refused.private_data[:4]) == (0, reason), refused
        else:
            raise AssertionError(f"{private_data.hex()} was accepted")


def test_refused_connects(target):
    """Each field of Connect out of range, with the offset of the field in the result"""
    one = host(target, queues=0)
    in_data, in_command = 1 << 16, 0
    absent = nvme.connect_data(one.host_id, 0xFFFF, "nqn.2026-01.org.example:absent", one.host_nqn)
    cases = (
        ({"data": absent}, INVALID_PARAMETERS, 256 | in_data),
        ({"cntlid": 7}, INVALID_PARAMETERS, 16 | in_data),
        ({"sqsize": 0}, INVALID_PARAMETERS, 44 | in_command),
        ({"recfmt": 1}, INVALID_FORMAT, None),
        ({"data": bytes(1023)}, SGL_LENGTH, None),
        ({"data": bytes(1025)}, SGL_LENGTH, None),
    )
    for changes, wanted, result in cases:
        queue = Queue(target.address)
        completion = expect(queue.connect(one, **changes), wanted)
        assert completion.dnr, f"{wanted} without Do Not Retry"
        assert result is None or completion.result == result, f"result {completion.result:#x}"
        queue.close()
    one.close()


def test_refused_io_connects(target):
    """An I/O queue of another controller, of another host, or a second time"""
    with host(target) as first, host(target, queues=0) as second:
        for owner, cntlid, qid in ((first, 0xFFF0, 2), (second, first.cntlid, 2), (first, first.cntlid, 0xFFF0)):
            queue = Queue(target.address, qid=qid)
            expect(queue.connect(owner, cntlid), INVALID_PARAMETERS)
            queue.close()
        queue = Queue(target.address, qid=1)
        expect(queue.connect(first, first.cntlid), COMMAND_SEQUENCE, INVALID_PARAMETERS)
        queue.close()
        succeed(read(first.io[0], 0, 1))


def test_first_command_must_be_connect(target):
    """Anything before Connect is refused, and Connect only once"""
    queue = Queue(target.address)
    expect(queue.execute(nvme.IDENTIFY, 0, (1,), into=4096), INVALID_OPCODE, COMMAND_SEQUENCE)
    queue.close()
    with host(target, queues=0) as connected:
        expect(connected.admin.connect(connected), COMMAND_SEQUENCE, INVALID_PARAMETERS, (1, 0x81))


def test_commands_wait_for_enable(target):
    """Identify before CC.EN is a Command Sequence Error"""
    with host(target, queues=0) as connected:
        succeed(connected.admin.property_set(nvme.CC, nvme.CC_ENABLE & ~1))
        while succeed(connected.admin.property_get(nvme.CSTS, 0)).result & 1:
            pass
        expect(connected.admin.execute(nvme.IDENTIFY, 0, (1,), into=4096), COMMAND_SEQUENCE)


# Properties ---------------------------------------------------------------------------------------------------------


def test_properties(target):
    """Property Get and Set: sizes, unknown offsets, read-only ones"""
    with host(target, queues=0) as connected:
        admin = connected.admin
        cap = succeed(admin.property_get(nvme.CAP, 1)).result
        assert cap & 0xFFFF >= 127 and cap >> 16 & 1 and cap >> 37 & 1, f"CAP {cap:#x}"
        assert succeed(admin.property_get(nvme.VS, 0)).result >> 16 in (1, 2)
        assert succeed(admin.property_get(nvme.CC, 0)).result == nvme.CC_ENABLE
        assert succeed(admin.property_get(nvme.CSTS, 0)).result == 1
        for offset, attribute in ((nvme.CAP, 0), (nvme.VS, 1), (nvme.CSTS, 7), (0x4, 0), (0x1000, 0), (0xFFFFFFFF, 1)):
            assert expect(admin.property_get(offset, attribute), INVALID_FIELD).dnr
        for offset in (nvme.CAP, nvme.VS, nvme.CSTS, 0x30, 0xFFFFFFF0):
            expect(admin.property_set(offset, 1), INVALID_FIELD)
        expect(admin.property_set(nvme.CC, nvme.CC_ENABLE, attribute=1), INVALID_FIELD)


def test_shutdown(target):
    """CC.SHN: the controller says when shutdown is complete"""
    with host(target) as connected:
        succeed(connected.admin.property_set(nvme.CC, nvme.CC_ENABLE | 1 << 14))
        while succeed(connected.admin.property_get(nvme.CSTS, 0)).result >> 2 & 3 != 2:
            pass


def test_bad_configuration_is_fatal(target):
    """Enabling with impossible entry sizes sets CSTS.CFS"""
    queue = Queue(target.address)
    with host(target, queues=0) as connected:
        succeed(queue.connect(connected))
        queue.property_set(nvme.CC, 0x00330001)
        csts = succeed(queue.property_get(nvme.CSTS, 0)).result
        assert csts & 2 and not csts & 1, f"CSTS {csts:#x}"
    queue.close()


# Identify, features, log pages --------------------------------------------------------------------------------------


def identify(queue, cns, nsid=0, **options):
    return queue.execute(nvme.IDENTIFY, nsid, (cns,), into=4096, **options)


def test_identify_controller(target):
    """Identify Controller: all that a Linux host insists on"""
    with host(target, queues=0) as connected:
        data = succeed(identify(connected.admin, 1)).data
        word = lambda offset, size: int.from_bytes(data[offset : offset + size], "little")  # noqa: E731
        assert word(78, 2) == connected.cntlid
        assert word(80, 4) == succeed(connected.admin.property_get(nvme.VS, 0)).result
        assert data[76] & 2, "CMIC: another controller must be possible"
        assert data[111] == 1, "CNTRLTYPE"
        assert word(320, 2), "KAS"
        assert (data[512], data[513]) == (0x66, 0x44)
        assert word(514, 2) == (connected.cap & 0xFFFF) + 1, "MAXCMD"
        assert word(516, 4) >= 3, "NN"
        assert word(536, 4) & 0x100007 == 0x100005, "SGLS"
        assert data[768:1024].rstrip(b"\0").decode() == target.nqn
        assert word(1792, 4) == (64 + 4096) // 16 and word(1796, 4) == 1 and word(1800, 2) == 0
        assert data[1803] == 1, "MSDBD"
        for begin, end in ((4, 24), (24, 64), (64, 72)):
            assert all(32 <= byte < 127 for byte in data[begin:end]), "identity strings are ASCII, space padded"


def test_identify_namespaces(target):
    """Identify of active, inactive and impossible namespaces"""
    with host(target, queues=0) as connected:
        admin = connected.admin
        for nsid, shift, size in ((1, 9, BLOCKS), (2, 12, BLOCKS // 8), (3, 9, BLOCKS // 4)):
            data = succeed(identify(admin, 0, nsid)).data
            assert struct.unpack("<QQ", data[:16]) == (size, size)
            assert data[128 + 4 * (data[26] & 15) + 2] == shift
            assert data[30] & 1, "NMIC: the namespace must be shareable"
            assert data[99] & 1 == (nsid == 3), "NSATTR: write protected"
        assert succeed(identify(admin, 0, 999)).data == bytes(4096)
        expect(identify(admin, 0, 0xFFFFFFFF), INVALID_NAMESPACE, (0, 0x00))
        expect(identify(admin, 0, 0), INVALID_NAMESPACE, INVALID_FIELD)


def test_identify_lists(target):
    """Active namespace lists, descriptors, and structures that are not there"""
    with host(target, queues=0) as connected:
        admin = connected.admin
        nsids = lambda data: [nsid for (nsid,) in struct.iter_unpack("<I", data) if nsid]  # noqa: E731
        assert nsids(succeed(identify(admin, 2, 0)).data) == [1, 2, 3]
        assert nsids(succeed(identify(admin, 2, 1)).data) == [2, 3]
        assert nsids(succeed(identify(admin, 2, 3)).data) == []
        expect(identify(admin, 2, 0xFFFFFFFE), INVALID_NAMESPACE)
        expect(identify(admin, 2, 0xFFFFFFFF), INVALID_NAMESPACE)
        names = [descriptors(succeed(identify(admin, 3, nsid)).data) for nsid in (1, 2, 3)]
        assert all(3 in name and len(name[3]) == 16 and any(name[3]) for name in names), "each has a UUID"
        assert len({name[3] for name in names}) == 3, "and each its own"
        expect(identify(admin, 3, 999), INVALID_NAMESPACE)
        for cns in (0x0F, 0x7E, 0xFF):
            assert expect(identify(admin, cns), INVALID_FIELD).dnr


def descriptors(data):
    """The namespace identification descriptors by type."""
    found, at = {}, 0
    while at + 4 <= len(data) and data[at + 1]:
        found[data[at]] = data[at + 4 : at + 4 + data[at + 1]]
        at += 4 + data[at + 1]
    return found


def test_identity_is_stable(target):
    """Two controllers tell the same of a namespace"""
    with host(target, queues=0) as one, host(target, queues=0) as two:
        for cns in (0, 3):
            assert succeed(identify(one.admin, cns, 1)).data == succeed(identify(two.admin, cns, 1)).data


def feature(queue, opcode, identifier, value=0, **options):
    return queue.execute(opcode, options.pop("nsid", 0), (identifier, value), **options)


def test_features(target):
    """Set and Get Features: queues, events, keep-alive, write cache, unknown ones"""
    with host(target, queues=0) as connected:
        admin = connected.admin
        granted = succeed(feature(admin, nvme.SET_FEATURES, 7, 0x00030003)).result & 0xFFFFFFFF
        assert granted & 0xFFFF == granted >> 16, f"{granted:#x}: as many submission as completion queues"
        expect(feature(admin, nvme.SET_FEATURES, 7, 0xFFFFFFFF), INVALID_FIELD)
        succeed(feature(admin, nvme.SET_FEATURES, 0x0B, 0x100))
        assert succeed(feature(admin, nvme.GET_FEATURES, 0x0B)).result & 0xFFFFFFFF == 0x100
        succeed(feature(admin, nvme.SET_FEATURES, 0x0F, 60000))
        assert succeed(feature(admin, nvme.GET_FEATURES, 0x0F)).result & 0xFFFFFFFF == 60000
        succeed(feature(admin, nvme.GET_FEATURES, 6))
        for identifier in (0x00, 0x77, 0xFF):
            for opcode in (nvme.SET_FEATURES, nvme.GET_FEATURES):
                assert expect(feature(admin, opcode, identifier), INVALID_FIELD).dnr


def log_page(queue, identifier, length, offset=0, nsid=0xFFFFFFFF):
    dwords = length // 4 - 1
    cdw10, cdw11 = identifier | (dwords & 0xFFFF) << 16, dwords >> 16
    return queue.execute(nvme.GET_LOG_PAGE, nsid, (cdw10, cdw11, offset & 0xFFFFFFFF, offset >> 32), into=length)


def test_log_pages(target):
    """Get Log Page: error, SMART, firmware slots, and an unknown page"""
    with host(target, queues=0) as connected:
        for identifier, length in ((1, 64), (2, 512), (3, 512)):
            succeed(log_page(connected.admin, identifier, length))
        for identifier in (0x7F, 0xC1):
            expect(log_page(connected.admin, identifier, 512), INVALID_FIELD, (1, 0x09))


def test_async_events(target):
    """Asynchronous events stay outstanding, up to the limit Identify names"""
    with host(target, queues=0, kato_ms=60000) as connected:
        limit = succeed(identify(connected.admin, 1)).data[259] + 1
        held = [connected.admin.submit(nvme.ASYNC_EVENT) for _ in range(limit)]
        expect(connected.admin.execute(nvme.ASYNC_EVENT), EVENT_LIMIT)
        connected.admin.poll()
        assert not any(cid in connected.admin.completions for cid in held)
        succeed(connected.admin.execute(nvme.KEEP_ALIVE))


def test_abort(target):
    """Abort of a command that is not there succeeds and says so"""
    with host(target, queues=0) as connected:
        assert succeed(connected.admin.execute(nvme.ABORT, 0, (0x12340001,))).result & 1 == 1


def test_keep_alive_expires(target):
    """A controller whose host falls silent is taken down, its I/O queues with it"""
    with host(target, kato_ms=500) as silent:
        try:
            while True:
                silent.io[0].connection.receive(20)
        except iwarp.Closed:
            pass


def test_unknown_opcodes(target):
    """Opcodes that mean nothing, on either kind of queue"""
    with host(target) as connected:
        for opcode in (0x00, 0x01, 0x04, 0x05, 0x3C, 0x7E, 0xC0, 0xFF):
            assert expect(connected.admin.execute(opcode), INVALID_OPCODE).dnr
        for opcode in (0x3C, 0x7E, 0x80, 0xFC):
            assert expect(connected.io[0].execute(opcode, 1), INVALID_OPCODE).dnr
        for kind in (0x55, 0xC5):
            expect(connected.admin.execute(nvme.FABRICS, kind), INVALID_OPCODE, INVALID_FIELD)
        expect(connected.io[0].property_get(nvme.CAP, 1), INVALID_OPCODE, INVALID_FIELD, COMMAND_SEQUENCE)


# Input and output ---------------------------------------------------------------------------------------------------


def test_in_capsule_write(target):
    """Data in the capsule, from one block to the largest capsule"""
    with host(target) as connected:
        for length in (512, 1024, 4096):
            data = os.urandom(length)
            succeed(write(connected.io[0], 200, data, inline=True))
            assert succeed(read(connected.io[0], 200, length // BLOCK)).data == data


def test_in_capsule_bounds(target):
    """In-capsule SGLs that point outside what was sent never reach memory"""
    with host(target) as connected:
        queue, data = connected.io[0], os.urandom(512)
        cases = (
            (nvme.in_capsule_sgl(512, 512), (SGL_OFFSET, SGL_LENGTH)),
            (nvme.in_capsule_sgl(1, 512), (SGL_OFFSET, SGL_LENGTH)),
            (nvme.in_capsule_sgl(2**64 - 1, 512), (SGL_OFFSET, SGL_LENGTH)),
            (nvme.in_capsule_sgl(0, 1024), (SGL_OFFSET, SGL_LENGTH)),
            (nvme.in_capsule_sgl(0, 0xFFFFFFFF), (SGL_OFFSET, SGL_LENGTH)),
            (nvme.in_capsule_sgl(0, 0), (SGL_LENGTH,)),
        )
        for sgl, wanted in cases:
            expect(write(queue, 0, data, inline=True, sgl=sgl), *wanted)
        expect(io(queue, nvme.READ, 0, 1, sgl=nvme.in_capsule_sgl(0, 512)), INVALID_FIELD, SGL_TYPE)
        succeed(read(queue, 0, 1))


def test_keyed_sgl_length(target):
    """A keyed SGL must be exactly as long as the command's data"""
    with host(target) as connected:
        for opcode in (nvme.READ, nvme.WRITE, nvme.COMPARE):
            for length in (512, 1024, 4096 - 1, 4096 + 512):
                data = {"into": length} if opcode == nvme.READ else {"out": bytes(length)}
                assert expect(io(connected.io[0], opcode, 0, 8, **data), SGL_LENGTH).dnr
            expect(io(connected.io[0], opcode, 0, 8), SGL_LENGTH)


def test_sgl_types(target):
    """Data pointers of kinds that NVMe/RDMA does not carry"""
    with host(target) as connected:
        queue = connected.io[0]
        for kind in (0x00, 0x10, 0x20, 0x30, 0x31, 0x5A, 0x42, 0x4E, 0xF0):
            sgl = keyed_sgl(0x1000, BLOCK, 0x1234, kind)
            expect(io(queue, nvme.WRITE, 0, 1, sgl=sgl), SGL_TYPE, INVALID_FIELD, SGL_LENGTH, SGL_OFFSET, (0, 0x0D), (0, 0x0E))
        for flags in (0x00, 0x80, 0xC0):
            expect(io(queue, nvme.READ, 0, 1, into=BLOCK, flags=flags), INVALID_FIELD)
            expect(connected.admin.execute(nvme.IDENTIFY, 0, (1,), into=4096, flags=flags), INVALID_FIELD)
        succeed(read(queue, 0, 1))


def test_ranges(target):
    """Blocks past the end, also where the sum overflows, and more than MDTS"""
    with host(target) as connected:
        queue = connected.io[0]
        for slba in (BLOCKS, BLOCKS - 1, 2**32, 2**63, 2**64 - 1, 2**64 - 2):
            for opcode in (nvme.READ, nvme.WRITE, nvme.COMPARE):
                data = {"into": 1024} if opcode == nvme.READ else {"out": bytes(1024)}
                assert expect(io(queue, opcode, slba, 2, **data), LBA_RANGE).dnr
            expect(io(queue, nvme.WRITE_ZEROES, slba, 2), LBA_RANGE)
            expect(io(queue, nvme.VERIFY, slba, 2), LBA_RANGE)
        succeed(read(queue, BLOCKS - 2, 2))
        largest = 4096 << succeed(identify(connected.admin, 1)).data[77]
        expect(read(queue, 0, largest // BLOCK + 1), INVALID_FIELD)
        succeed(read(queue, 0, largest // BLOCK))


def test_unknown_namespaces(target):
    """NSIDs that are not there, zero and the broadcast value"""
    with host(target) as connected:
        for nsid in (0, 4, 999, 0xFFFFFFFE, 0xFFFFFFFF):
            assert expect(read(connected.io[0], 0, 1, nsid=nsid), INVALID_NAMESPACE).dnr
            expect(write(connected.io[0], 0, bytes(512), nsid=nsid), INVALID_NAMESPACE)
        expect(connected.io[0].execute(nvme.FLUSH, 999), INVALID_NAMESPACE)


def test_read_only(target):
    """A read-only namespace reads and refuses to change"""
    with host(target) as connected:
        queue = connected.io[0]
        succeed(read(queue, 0, 1, nsid=3))
        expect(write(queue, 0, bytes(512), nsid=3), READ_ONLY)
        expect(io(queue, nvme.WRITE_ZEROES, 0, 1, nsid=3), READ_ONLY)
        ranges = struct.pack("<IIQ", 0, 8, 0)
        expect(queue.execute(nvme.DATASET_MANAGEMENT, 3, (0, 4), out=ranges), READ_ONLY)


def test_flush_and_fua(target):
    """Flush of one namespace and Write with Force Unit Access"""
    with host(target) as connected:
        succeed(connected.io[0].execute(nvme.FLUSH, 1))
        data = os.urandom(4096)
        succeed(write(connected.io[0], 16, data, control=0x4000))
        assert succeed(read(connected.io[0], 16, 8, control=0x4000)).data == data


def test_write_zeroes(target):
    """Write Zeroes, beyond MDTS too, with and without Deallocate"""
    with host(target) as connected:
        queue = connected.io[0]
        for control in (0, 0x0200):
            succeed(write(queue, 4096, os.urandom(8192)))
            succeed(io(queue, nvme.WRITE_ZEROES, 4096, 8192, control=control))
            assert succeed(read(queue, 4096, 16)).data == bytes(8192)


def test_dataset_management(target):
    """Deallocate, with the padded list Linux sends, in capsule and keyed; bad ranges and lists"""
    with host(target) as connected:
        queue = connected.io[0]
        manage = lambda ranges, count, **how: queue.execute(  # noqa: E731
            nvme.DATASET_MANAGEMENT, 1, (count - 1, 4), out=ranges, **how
        )
        padded = struct.pack("<IIQ", 0, 8, 64).ljust(4096, b"\0")
        for inline in (False, True):
            succeed(manage(padded, 1, inline=inline))
        succeed(manage(struct.pack("<IIQIIQ", 0, 8, 0, 0, 0, 128), 2))
        expect(manage(struct.pack("<IIQ", 0, 8, BLOCKS), 1), LBA_RANGE)
        expect(manage(struct.pack("<IIQ", 0, 0xFFFFFFFF, 2**64 - 1), 1), LBA_RANGE)
        expect(manage(struct.pack("<IIQ", 0, 8, 0), 256), SGL_LENGTH)
        succeed(read(queue, 64, 8))


def test_compare(target):
    """Compare of equal and of different data"""
    with host(target) as connected:
        queue, data = connected.io[0], os.urandom(8192)
        succeed(write(queue, 300, data))
        succeed(io(queue, nvme.COMPARE, 300, 16, out=data))
        succeed(io(queue, nvme.COMPARE, 300, 8, out=data[:4096], inline=True))
        expect(io(queue, nvme.COMPARE, 300, 16, out=data[:-1] + bytes([data[-1] ^ 1])), COMPARE_FAILURE)


def test_verify(target):
    """Verify reads without transferring"""
    with host(target) as connected:
        succeed(io(connected.io[0], nvme.VERIFY, 0, 2048))


def test_many_at_once_within_the_read_depth(target):
    """A full queue of keyed writes never has more RDMA Reads under way than this side takes"""
    with host(target, queues=0, ird=3) as connected:
        queue = connected.add_queue(32)
        queue.connection.hold_reads()
        data = [os.urandom(4096) for _ in range(31)]
        cids = [
            queue.submit(nvme.WRITE, 1, (8 * index, 0, 7), out=piece) for index, piece in enumerate(data)
        ]
        while queue.connection.pump(1):
            assert len(queue.connection.held_reads) <= 3
        assert queue.connection.held_reads, "no read was asked for"
        queue.connection.release_reads()
        for cid in cids:
            succeed(queue.wait(cid))
        for index, piece in enumerate(data):
            assert succeed(read(queue, 8 * index, 8)).data == piece


def test_submission_queue_head(target):
    """SQHD goes round the queue, one for each command"""
    with host(target, queues=0) as connected:
        queue = connected.add_queue(8)
        heads = [succeed(read(queue, 0, 1)).sq_head for _ in range(20)]
        assert all((after - before) % 8 == 1 for before, after in zip(heads, heads[1:])), heads


def test_flow_control_off(target):
    """Connect that asks for no SQ flow control is told so by SQHD FFFFh, or refused"""
    with host(target, queues=0) as connected:
        queue = Queue(target.address, qid=1, cntlid=connected.cntlid)
        completion = queue.connect(connected, connected.cntlid, attributes=4)
        if status(completion) == (0, 0):
            assert completion.sq_head == 0xFFFF
            succeed(read(queue, 0, 1))
        queue.close()


def test_fused_is_answered(target):
    """A fused pair is carried out or refused, never left alone"""
    with host(target) as connected:
        queue = connected.io[0]
        data = os.urandom(512)
        first = queue.submit(nvme.COMPARE, 1, (0, 0, 0), out=data, flags=0x41)
        second = queue.submit(nvme.WRITE, 1, (0, 0, 0), out=data, flags=0x42)
        assert status(queue.wait(first)) != (0, 0)
        assert status(queue.wait(second)) != (0, 0)
