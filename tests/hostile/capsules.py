"""Attacks inside well-formed messages: Connect, commands and their data pointers."""

import random
import struct
import uuid

from peer import nvme
from play import Attack

HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"


class Stranger:
    """Who connects; the fields `Queue.connect` wants of a host."""

    def __init__(self, target):
        self.host_id, self.host_nqn, self.subsystem_nqn = uuid.UUID(int=1), HOST_NQN, target.nqn


def connecting(**changes):
    """An attack by one Connect with something changed; any answer but silence will do."""

    def start(target):
        queue = nvme.Queue(target.address, changes.get("real_qid", 0))
        options = {name: value for name, value in changes.items() if name != "real_qid"}
        if callable(options.get("data")):
            options["data"] = options["data"](target)
        queue.connect(Stranger(target), **options)
        return queue.connection.socket

    return start


def connect_fields(_):
    """Connect: every field of the command at its extremes"""
    for value in (0, 1, 2, 30, 32, 127, 128, 0x7FFF, 0xFFFE, 0xFFFF):
        yield Attack(f"sqsize {value}", connecting(sqsize=value), False)
        yield Attack(f"recfmt {value}", connecting(recfmt=value), False)
        yield Attack(f"qid {value}", connecting(qid=value), False)
        yield Attack(f"cntlid {value}", connecting(cntlid=value), False)
    for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
        yield Attack(f"kato {value}", connecting(kato_ms=value), False)
    for value in (0x01, 0x04, 0x08, 0x10, 0x80, 0xFF):
        yield Attack(f"attributes {value}", connecting(attributes=value), False)
    for qid in (1, 2, 0xFFFF):
        yield Attack(f"queue {qid} of no controller", connecting(real_qid=qid, cntlid=0x7777), False)


def connect_data(_):
    """Connect: names without end, not text, empty; data too short, too long, in the capsule"""
    whole = lambda subsystem, host: lambda _: bytes(256) + subsystem.ljust(256, b"\0") + host.ljust(256, b"\0") + bytes(256)  # noqa: E731
    good = HOST_NQN.encode()
    for name in (b"", b"n", b"a" * 222, b"a" * 223, b"a" * 224, b"a" * 255, b"a" * 256, b"\xff" * 256, b"nqn.\0x", b"\n\x1b[2J%s%n"):
        yield Attack(f"subsystem {name[:12]!r}", connecting(data=whole(name, good)), False)
        yield Attack(f"host {name[:12]!r}", connecting(data=own_subsystem_with_host(name)), False)
    for length in (1, 512, 1023, 1025, 4096, 1 << 20):
        yield Attack(f"{length} bytes", connecting(data=bytes(length)), False)
    yield Attack("in the capsule", connecting(inline=True), False)
    choose = random.Random(4)
    for index in range(50):
        yield Attack(f"noise {index}", connecting(data=choose.randbytes(1024)), False)


def own_subsystem_with_host(name):
    def make(target):
        data = bytearray(nvme.connect_data(uuid.UUID(int=1), 0xFFFF, target.nqn, ""))
        data[512:768] = name.ljust(256, b"\0")
        return bytes(data)

    return make


def connect_pointers(_):
    """Connect: data pointers of every kind and length"""
    for kind in range(256):
        yield Attack(f"kind {kind:#04x}", connecting(sgl=nvme.keyed_sgl(2**64 - 8, 1024, 0xFFFFFFFF, kind)), False)


# FUSE in the flags of a command (NVM Express base specification 2.2, figure 91).
FUSED_FIRST = 1


def exercise(admin, commands):
    """An attack of many commands, each answered, on one queue of a connected controller; `admin` says which queue."""

    def start(target):
        host = nvme.Host(target.address, target.nqn, queues=0 if admin else 1)
        queue = host.admin if admin else host.io[0]
        # A nonsense command may move its data either way.
        queue.grants_all = True
        unanswered = []
        for options in [*commands, {"opcode": nvme.FLUSH, "nsid": 1}]:
            unanswered.append(queue.submit(**options))
            # The first of two fused commands may wait for what comes next.
            if options.get("flags", 0) & 3 != FUSED_FIRST:
                while unanswered:
                    queue.wait(unanswered.pop(0))
        if not admin:
            host.admin.close()
        return queue.connection.socket

    return start


def pointers_without_memory(_):
    """Commands whose keyed SGL names memory that is not there: this side ends the connection as an adapter would"""
    for opcode in (nvme.READ, nvme.WRITE):
        for key, address in ((0, 0), (0xFFFFFFFF, 2**64 - 1), (0x5A00, 2**64 - 512)):
            yield Attack(f"{opcode} {key:#x}", naming_nothing(opcode, nvme.keyed_sgl(address, 512, key, 0x4F)), False)


def naming_nothing(opcode, sgl):
    def start(target):
        host = nvme.Host(target.address, target.nqn)
        host.admin.close()
        host.io[0].submit(opcode, 1, (0, 0, 0), sgl=sgl)
        return host.io[0].connection.socket

    return start


def every_opcode(_):
    """Every opcode on either queue, with and without data"""
    without = [{"opcode": opcode, "nsid": 1} for opcode in range(256) if opcode != nvme.ASYNC_EVENT]
    inward = [{"opcode": opcode, "nsid": 1, "into": 512} for opcode in range(0, 256) if opcode != nvme.ASYNC_EVENT]
    inline = [{"opcode": opcode, "nsid": 1, "out": bytes(512), "inline": True} for opcode in range(1, 256, 4)]
    for admin in (True, False):
        for name, commands in (("none", without), ("inward", inward), ("inline", inline)):
            yield Attack(f"{'admin' if admin else 'I/O'}, data {name}", exercise(admin, commands), False)


def command_noise(_):
    """Random dwords, namespaces, flags and data pointers under real opcodes"""
    choose = random.Random(5)
    admin_opcodes = (2, 6, 8, 9, 10, 13, 16, 20, 24, 25, 128, 129, 130, 132)
    io_opcodes = (0, 1, 2, 4, 5, 8, 9, 12, 13, 14, 17, 21, 25)
    for index in range(24):
        admin = index % 2 == 0
        commands = [random_command(choose, admin_opcodes if admin else io_opcodes) for _ in range(100)]
        yield Attack(f"{index}", exercise(admin, commands), False)


def random_command(choose, opcodes):
    number = lambda bits: choose.choice((0, 1, 7, choose.getrandbits(bits), (1 << bits) - 1))  # noqa: E731
    options = {
        "opcode": choose.choice(opcodes),
        "nsid": choose.choice((0, 1, 1, 1, 2, 0xFFFFFFFF)),
        "dwords": [number(32) for _ in range(6)],
        "flags": choose.choice((0x40, 0x40, 0x40, 0x00, 0x41, 0x42, 0xC0, 0xFF)),
    }
    length = choose.choice((16, 512, 4096))
    how = choose.randrange(4)
    if how == 0:
        options["into"] = choose.choice((length, 65536))
    elif how == 1:
        options.update(out=choose.randbytes(length), inline=True)
    elif how == 2:
        sgl = nvme.in_capsule_sgl(number(64), number(32), choose.choice((0x01, 0x00, 0x21, 0x31)))
        options.update(out=choose.randbytes(length), inline=True, sgl=sgl)
    return options


def capsules_of_any_length(_):
    """Capsules longer than their command says, up to the largest"""
    commands = []
    for length in (1, 63, 64, 448, 511, 513, 4095, 4096):
        commands.append({"opcode": nvme.WRITE, "nsid": 1, "dwords": (0, 0, 0), "out": bytes(length), "inline": True})
        commands.append({"opcode": nvme.FLUSH, "nsid": 1, "out": bytes(length), "inline": True, "sgl": nvme.NO_DATA})
    yield Attack("I/O", exercise(False, commands), False)
    identify = {"opcode": nvme.IDENTIFY, "dwords": (1,), "out": bytes(4096), "inline": True}
    yield Attack("admin", exercise(True, [identify]), False)


def dataset_ranges(_):
    """Dataset Management with lists that lie"""
    choose = random.Random(6)
    commands = []
    for count in (0, 1, 2, 255):
        for _ in range(8):
            ranges = b"".join(struct.pack("<IIQ", *(choose.getrandbits(bits) for bits in (32, 32, 64))) for _ in range(4))
            commands.append({"opcode": nvme.DATASET_MANAGEMENT, "nsid": 1, "dwords": (count, 4), "out": ranges})
    yield Attack("keyed", exercise(False, commands), False)
    yield Attack("inline", exercise(False, [{**command, "inline": True} for command in commands]), False)


FAMILIES = (
    connect_fields,
    connect_data,
    connect_pointers,
    pointers_without_memory,
    every_opcode,
    command_noise,
    capsules_of_any_length,
    dataset_ranges,
)
