"""Probes of the discovery controller."""

import struct

from conformance import INVALID_FIELD, INVALID_OPCODE, INVALID_PARAMETERS, expect, identify, log_page
from peer import nvme
from peer.nvme import Host, Queue, status, succeed

PAGE = 0x70


def discover(target, **options):
    return Host(target.address, nvme.DISCOVERY_NQN, queues=0, **options)


def text(field):
    return field.rstrip(b"\0 ").decode("ascii")


def test_discovery_controller(target):
    """The discovery controller says what it is"""
    with discover(target) as connected:
        data = succeed(identify(connected.admin, 1)).data
        assert data[111] == 2 and text(data[768:1024]) == nvme.DISCOVERY_NQN
        expect(identify(connected.admin, 0, 1), INVALID_FIELD)
        expect(log_page(connected.admin, 2, 512), INVALID_FIELD, (1, 0x09))
        expect(connected.admin.execute(nvme.READ + 0x3C), INVALID_OPCODE)


def test_discovery_log(target):
    """The discovery log names the subsystem and this very address"""
    with discover(target) as connected:
        header = succeed(log_page(connected.admin, PAGE, 1024, nsid=0)).data
        records = struct.unpack("<QQH", header[:18])[1]
        whole = succeed(log_page(connected.admin, PAGE, 1024 * (1 + records), nsid=0)).data
        entries = [whole[1024 * (1 + index) : 1024 * (2 + index)] for index in range(records)]
        (entry,) = [entry for entry in entries if text(entry[256:512]) == target.nqn]
        assert (entry[0], entry[1], entry[2]) == (1, 1, 2), "RDMA, IPv4, NVM subsystem"
        assert struct.unpack("<H", entry[6:8])[0] == 0xFFFF and struct.unpack("<H", entry[8:10])[0] >= 32
        assert (text(entry[512:768]), text(entry[32:64])) == ("127.0.0.1", str(target.port))
        assert (entry[768], entry[770]) == (1, 1), "reliable connection, RDMA CM"


def test_discovery_log_in_pieces(target):
    """Read in pieces at any dword it is the same log; past its end and between dwords it is refused"""
    with discover(target) as connected:
        whole = succeed(log_page(connected.admin, PAGE, 2048, nsid=0)).data
        pieces = b"".join(succeed(log_page(connected.admin, PAGE, 20, offset, 0)).data for offset in range(0, 1020, 20))
        assert pieces == whole[:1020]
        assert succeed(log_page(connected.admin, PAGE, 1024, 1024, 0)).data == whole[1024:]
        expect(log_page(connected.admin, PAGE, 16, 2, 0), INVALID_FIELD)
        expect(log_page(connected.admin, PAGE, 16, 1 << 40, 0), INVALID_FIELD)


def test_discovery_has_no_io_queues(target):
    """An I/O queue of a discovery controller is refused"""
    with discover(target) as connected:
        queue = Queue(target.address, qid=1, cntlid=connected.cntlid)
        expect(queue.connect(connected, connected.cntlid), INVALID_PARAMETERS)
        queue.close()


def test_discovery_is_kept_alive(target):
    """Keep Alive and an outstanding event on the discovery controller"""
    with discover(target, kato_ms=60000) as connected:
        held = connected.admin.submit(nvme.ASYNC_EVENT)
        succeed(connected.admin.execute(nvme.KEEP_ALIVE))
        assert held not in connected.admin.completions or status(connected.admin.completions[held]) == (0, 0)
