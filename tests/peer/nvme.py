"""An NVMe host over `iwarp.Connection`: capsules, data by keyed or in-capsule SGL, completions, strictly checked."""

import struct
import uuid
from collections import namedtuple

from . import iwarp
from .wire import Violation

FABRICS = 0x7F
PROPERTY_SET, CONNECT, PROPERTY_GET = 0x00, 0x01, 0x04
FLUSH, WRITE, READ, COMPARE, WRITE_ZEROES, DATASET_MANAGEMENT, VERIFY = 0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C
GET_LOG_PAGE, IDENTIFY, ABORT, SET_FEATURES, GET_FEATURES, ASYNC_EVENT, KEEP_ALIVE = 2, 6, 8, 9, 10, 12, 24
CAP, VS, CC, CSTS = 0x00, 0x08, 0x14, 0x1C
CC_ENABLE = 0x00460001
DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"
ADMIN_DEPTH = 32

KEYED, KEYED_INVALIDATE, IN_CAPSULE = 0x40, 0x4F, 0x01

Completion = namedtuple("Completion", "result sq_head sq_id cid status_type status_code dnr data")


def status(completion):
    """(status code type, status code), the way the specification's tables name it."""
    return completion.status_type, completion.status_code


def keyed_sgl(address, length, key, kind=KEYED):
    return struct.pack("<Q", address) + length.to_bytes(3, "little") + struct.pack("<IB", key, kind)


def in_capsule_sgl(offset, length, kind=IN_CAPSULE):
    return struct.pack("<QI3xB", offset, length, kind)


NO_DATA = keyed_sgl(0, 0, 0)


def command(opcode, cid, nsid=0, sgl=NO_DATA, dwords=(), flags=0x40):
    """A 64-byte submission queue entry; `dwords` are command dwords 10 to 15."""
    assert len(sgl) == 16
    dwords = [*dwords, 0, 0, 0, 0, 0, 0][:6]
    return struct.pack("<BBHI16x", opcode, flags, cid, nsid) + sgl + struct.pack("<6I", *dwords)


def private_data(qid, depth, cntlid=0, recfmt=0, hsqsize=None, hrqsize=None):
    """The RDMA CM request's private data: HRQSIZE counts, HSQSIZE is 0's based."""
    hsqsize = depth - 1 if hsqsize is None else hsqsize
    return struct.pack("<5H22x", recfmt, qid, depth if hrqsize is None else hrqsize, hsqsize, cntlid)


def connect_data(host_id, cntlid, subsystem_nqn, host_nqn):
    data = bytearray(1024)
    data[:16] = host_id.bytes
    struct.pack_into("<H", data, 16, cntlid)
    data[256 : 256 + len(subsystem_nqn)] = subsystem_nqn.encode()
    data[512 : 512 + len(host_nqn)] = host_nqn.encode()
    return bytes(data)


class Queue:
    """One connected queue. `submit` sends a command, `wait` takes its completion, `execute` does both."""

    ADDRESS_BASE = 0x7F0000001234
    # A decent host grants no more than a command needs.
    grants_all = False

    def __init__(self, address, qid=0, depth=ADMIN_DEPTH, cntlid=0, **options):
        self.qid, self.depth = qid, depth
        self.connection = iwarp.Connection(address, private_data(qid, depth, cntlid), **options)
        if len(self.connection.reply) < 32:
            raise Violation(f"{len(self.connection.reply)} bytes of private data in the reply")
        recfmt, receive_depth = struct.unpack("<HH", self.connection.reply[:4])
        if recfmt or receive_depth < depth or any(self.connection.reply[4:32]):
            raise Violation(f"the CM reply {self.connection.reply.hex()}")
        self.next_cid = 0x1000 * (qid + 1)
        self.outstanding = {}
        self.completions = {}

    def submit(self, opcode, nsid=0, dwords=(), out=None, into=0, inline=False, invalidate=True, sgl=None, flags=0x40):
        """Sends a command with `out` bytes to the controller, or room for `into` bytes from it; returns its CID.

        `inline` puts `out` into the capsule; `invalidate` asks for the key to be invalidated with the response.
        """
        cid = self.next_cid = (self.next_cid + 1) & 0xFFFF
        stag, memory, capsule_data = None, None, b""
        if out is not None and inline:
            capsule_data, sgl = out, sgl or in_capsule_sgl(0, len(out))
        elif out is not None or into:
            memory = bytearray(out if out is not None else into)
            rights = iwarp.READ if out is not None else iwarp.WRITE
            if self.grants_all:
                rights = iwarp.READ | iwarp.WRITE
            stag = self.connection.register(memory, self.ADDRESS_BASE, rights)
            kind = KEYED_INVALIDATE if invalidate else KEYED
            sgl = sgl or keyed_sgl(self.ADDRESS_BASE, len(memory), stag, kind)
        self.outstanding[cid] = (stag, memory, invalidate)
        self.connection.send(command(opcode, cid, nsid, sgl or NO_DATA, dwords, flags) + capsule_data)
        return cid

    def wait(self, cid, timeout_s=None):
        while cid not in self.completions:
            self._take(*self.connection.receive(timeout_s))
        return self.completions.pop(cid)

    def poll(self):
        """Takes what has arrived without waiting."""
        self.connection.pump(0)
        while self.connection.messages:
            self._take(*self.connection.messages.pop(0))

    def execute(self, *positional, **options):
        return self.wait(self.submit(*positional, **options))

    def _take(self, payload, invalidated):
        if len(payload) != 16:
            raise Violation(f"a response capsule of {len(payload)} bytes")
        result, sq_head, sq_id, cid, word = struct.unpack("<QHHHH", payload)
        if cid not in self.outstanding:
            raise Violation(f"a completion for CID {cid:#x}, which is not outstanding")
        stag, memory, invalidate = self.outstanding.pop(cid)
        if invalidated is not None and (invalidated != stag or not invalidate):
            raise Violation(f"STag {invalidated:#x} invalidated without being asked")
        if sq_id != self.qid and sq_id != 0:
            raise Violation(f"SQ identifier {sq_id} on queue {self.qid}")
        if stag is not None:
            self.connection.deregister(stag)
        data = bytes(memory) if memory is not None else b""
        self.completions[cid] = Completion(
            result, sq_head, sq_id, cid, (word >> 9) & 7, (word >> 1) & 0xFF, bool(word & 0x8000), data
        )

    def connect(self, host, cntlid=0xFFFF, kato_ms=0, **changes):
        """Fabrics Connect; `changes` may replace the data, sqsize, recfmt, attributes or qid."""
        data = changes.pop("data", None) or connect_data(host.host_id, cntlid, host.subsystem_nqn, host.host_nqn)
        recfmt, qid = changes.pop("recfmt", 0), changes.pop("qid", self.qid)
        sqsize, attributes = changes.pop("sqsize", self.depth - 1), changes.pop("attributes", 0)
        dwords = (recfmt | qid << 16, sqsize | attributes << 16, kato_ms)
        return self.execute(FABRICS, CONNECT, dwords, out=data, **changes)

    def property_get(self, offset, attribute):
        return self.execute(FABRICS, PROPERTY_GET, (attribute, offset))

    def property_set(self, offset, value, attribute=0):
        return self.execute(FABRICS, PROPERTY_SET, (attribute, offset, value & 0xFFFFFFFF, value >> 32))

    def close(self):
        self.connection.close()


class Host:
    """A connected controller: an enabled admin queue and, with `queues`, I/O queues."""

    def __init__(self, address, subsystem_nqn, queues=1, depth=32, host_nqn=None, kato_ms=0, **options):
        self.address, self.subsystem_nqn, self.options = address, subsystem_nqn, options
        self.host_id = uuid.uuid4()
        self.host_nqn = host_nqn or f"nqn.2014-08.org.nvmexpress:uuid:{self.host_id}"
        self.io = []
        self.admin = Queue(address, **options)
        try:
            self._enable(kato_ms)
            for _ in range(queues):
                self.add_queue(depth)
        except BaseException:
            self.close()
            raise

    def _enable(self, kato_ms):
        connected = succeed(self.admin.connect(self, kato_ms=kato_ms))
        self.cntlid = connected.result & 0xFFFF
        self.cap = succeed(self.admin.property_get(CAP, 1)).result
        succeed(self.admin.property_set(CC, CC_ENABLE))
        while not succeed(self.admin.property_get(CSTS, 0)).result & 1:
            pass

    def add_queue(self, depth=32):
        queue = Queue(self.address, len(self.io) + 1, depth, self.cntlid, **self.options)
        self.io.append(queue)
        succeed(queue.connect(self, self.cntlid))
        return queue

    def close(self):
        for queue in [*self.io, self.admin]:
            queue.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def succeed(completion):
    if status(completion) != (0, 0):
        raise AssertionError(f"status {completion.status_type}/{completion.status_code:#04x}, result {completion.result:#x}")
    return completion
