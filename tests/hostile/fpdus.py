"""Attacks on FPDUs and on the DDP and RDMAP headers within, after a good MPA start-up."""

import random
import struct

from peer import nvme, wire
from peer.iwarp import Connection
from play import Attack

CAPSULE = nvme.command(nvme.FABRICS, 1, nvme.CONNECT, nvme.keyed_sgl(0x1000, 1024, 0x5A5A))
GOOD = wire.untagged(wire.SEND, 1, CAPSULE)


def after_mpa(*pieces, crc=True):
    """An attack that starts well and then sends these bytes."""

    def start(target):
        connection = Connection(target.address, nvme.private_data(0, 32), crc=crc)
        for piece in pieces:
            connection.send_bytes(piece)
        return connection.socket

    return start


def ulpdu(name, *segments):
    """A fatal attack of whole, rightly summed FPDUs."""
    return Attack(name, after_mpa(*[wire.fpdu(segment) for segment in segments]), True)


def fpdu_framing(_):
    """FPDU: impossible lengths, wrong CRC, padding that lies"""
    for length in range(14):
        yield ulpdu(f"ULPDU of {length}", GOOD[:length])
    for length in (14, 15, 16, 17):
        yield ulpdu(f"untagged ULPDU of {length}", GOOD[:length])
    good = wire.fpdu(GOOD)
    for at in range(len(good)):
        damaged = good[:at] + bytes([good[at] ^ 0x01]) + good[at + 1 :]
        # A damaged length asks for more bytes than come, or makes the sum wrong.
        yield Attack(f"bit flipped in byte {at}", after_mpa(damaged + bytes(512)), True)
    for checksum in (0, 0xFFFFFFFF, 0xDEADBEEF):
        yield Attack(f"checksum {checksum:#x}", after_mpa(wire.fpdu(GOOD, checksum=checksum)), True)
    yield Attack("longest FPDU", after_mpa(wire.fpdu(wire.untagged(wire.SEND, 1, bytes(65500)))), True)


def fpdu_truncated(_):
    """FPDU: cut off after every byte and left to stand"""
    good = wire.fpdu(GOOD)
    for length in range(len(good)):
        yield Attack(f"{length} bytes", after_mpa(good[:length]), True)


def headers(_):
    """DDP and RDMAP: versions, reserved bits, opcodes, buffer models, queue numbers"""
    for version in (0, 2, 3):
        yield ulpdu(f"DDP version {version}", wire.untagged(wire.SEND, 1, CAPSULE, ddp=version))
    for version in (0x00, 0x80, 0xC0):
        yield ulpdu(f"RDMAP version {version:#x}", wire.untagged(wire.SEND, 1, CAPSULE, rdmap=version))
    for opcode in range(8, 16):
        yield ulpdu(f"untagged opcode {opcode}", wire.untagged(opcode, 1, CAPSULE))
        yield ulpdu(f"tagged opcode {opcode}", wire.tagged(opcode, 0x1234, 0, CAPSULE))
    for opcode in (wire.WRITE, wire.READ_RESPONSE):
        yield ulpdu(f"opcode {opcode} untagged", wire.untagged(opcode, 1, CAPSULE))
    for opcode in (wire.READ_REQUEST, wire.SEND, wire.SEND_INVALIDATE, wire.TERMINATE):
        yield ulpdu(f"opcode {opcode} tagged", wire.tagged(opcode, 0x1234, 0, CAPSULE))
    for queue in (1, 2, 3, 4, 0x10000, 0xFFFFFFFF):
        yield ulpdu(f"Send on queue {queue}", wire.untagged(wire.SEND, 1, CAPSULE, queue=queue))
    for queue in (0, 2, 3):
        yield ulpdu(f"Read Request on queue {queue}", wire.untagged(wire.READ_REQUEST, 1, bytes(28), queue=queue))


def sequence_numbers(_):
    """Untagged messages: MSN and MO out of order, segments that do not belong together"""
    for msn in (0, 2, 33, 0x7FFFFFFF, 0xFFFFFFFF):
        yield ulpdu(f"MSN {msn}", wire.untagged(wire.SEND, msn, CAPSULE))
    for offset in (1, 64, 0xFFFFFFFF):
        yield ulpdu(f"MO {offset}", wire.untagged(wire.SEND, 1, CAPSULE, offset))
    first = wire.untagged(wire.SEND, 1, CAPSULE, last=False)
    yield ulpdu("a gap between segments", first, wire.untagged(wire.SEND, 1, CAPSULE, 65))
    yield ulpdu("an overlap of segments", first, wire.untagged(wire.SEND, 1, CAPSULE, 32))
    yield ulpdu("the next MSN within a message", first, wire.untagged(wire.SEND, 2, CAPSULE, 64))
    yield ulpdu("another opcode within a message", first, wire.untagged(wire.SEND_INVALIDATE, 1, CAPSULE, 64))


def lengths_of_messages(_):
    """Sends shorter than a capsule, longer than any, and without end"""
    for length in (0, 1, 63):
        yield ulpdu(f"a Send of {length} bytes", wire.untagged(wire.SEND, 1, CAPSULE[:length]))
    for length in (64 + 4097, 8192, 65000):
        yield ulpdu(f"a Send of {length} bytes", wire.untagged(wire.SEND, 1, bytes(length)))
    endless = [wire.untagged(wire.SEND, 1, bytes(1400), 1400 * index, last=False) for index in range(16)]
    yield ulpdu("a Send without end", *endless)
    # A segment without payload makes no progress, yet is no error by itself.
    idle = [wire.fpdu(wire.untagged(wire.SEND, 1, b"", last=False))] * 5000
    yield Attack("empty segments for ever", after_mpa(b"".join(idle)), False)


def more_than_the_queue_holds(_):
    """More capsules at once than receives were agreed"""
    flood = b"".join(wire.fpdu(wire.untagged(wire.SEND, msn, CAPSULE)) for msn in range(1, 200))
    yield Attack("199 Sends", after_mpa(flood), True)


def remote_access(_):
    """RDMA Write and Read of memory nobody granted"""
    for stag in (0, 1, 0x100, 0x12345678, 0xFFFFFFFF):
        for offset in (0, 0x1000, 2**63, 2**64 - 1):
            yield ulpdu(f"Write to {stag:#x}+{offset:#x}", wire.tagged(wire.WRITE, stag, offset, b"x" * 64))
            for length in (1, 4096, 0xFFFFFFFF):
                request = wire.read_request(1, 0x5A, 0, length, stag, offset)
                yield ulpdu(f"Read of {length} from {stag:#x}+{offset:#x}", request)
    for length in (0, 1, 27, 29, 64):
        yield ulpdu(f"Read Request body of {length}", wire.untagged(wire.READ_REQUEST, 1, bytes(length)))
    yield ulpdu("Read Request in two segments", wire.untagged(wire.READ_REQUEST, 1, bytes(28), last=False))
    yield ulpdu("Read Response unasked", wire.tagged(wire.READ_RESPONSE, 0x100, 0, b"x" * 64))
    yield ulpdu("empty Read Response unasked", wire.tagged(wire.READ_RESPONSE, 0, 0))
    yield ulpdu("Send with Invalidate", wire.untagged(wire.SEND_INVALIDATE, 1, CAPSULE, invalidate=0x100))
    ready = b"".join(wire.fpdu(wire.read_request(msn, 0, 0, 0, 1, 0)) for msn in range(1, 2000))
    yield Attack("empty Reads for ever", after_mpa(ready), False)
    ready = wire.fpdu(wire.tagged(wire.WRITE, 1, 0)) * 5000
    yield Attack("empty Writes for ever", after_mpa(ready), False)


def terminates(_):
    """Terminate messages of every shape"""
    for length in (0, 1, 3, 4, 8, 18, 100):
        yield ulpdu(f"Terminate of {length}", wire.untagged(wire.TERMINATE, 1, b"\xff" * length))
    yield ulpdu("Terminate with MSN 9", wire.untagged(wire.TERMINATE, 9, bytes(4)))
    yield ulpdu("Terminate, then more", wire.untagged(wire.TERMINATE, 1, bytes(4)), GOOD)


def answering_a_read_wrongly(_):
    """Read Responses that do not match the Read Request they answer"""
    wrong = {
        "another STag": lambda r: [wire.tagged(wire.READ_RESPONSE, r.sink_stag ^ 0x100, r.sink_offset, bytes(r.length))],
        "another offset": lambda r: [wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset + 1, bytes(r.length))],
        "offset before": lambda r: [wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset - 8 & 2**64 - 1, bytes(r.length))],
        "too short": lambda r: [wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset, bytes(r.length - 1))],
        "empty": lambda r: [wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset)],
        "too long": lambda r: [wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset, bytes(r.length + 1))],
        "a Write instead": lambda r: [wire.tagged(wire.WRITE, r.sink_stag, r.sink_offset, bytes(r.length))],
        "a gap": lambda r: [
            wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset, bytes(100), last=False),
            wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset + 101, bytes(r.length - 101)),
        ],
        "all, but not the last": lambda r: [
            wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset, bytes(r.length), last=False),
            wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset + r.length, b"x"),
        ],
        "twice": lambda r: [wire.tagged(wire.READ_RESPONSE, r.sink_stag, r.sink_offset, bytes(r.length))] * 2,
        "never": lambda r: [],
    }
    for name, answer in wrong.items():
        yield Attack(name, answering_connect(answer), True)


def answering_connect(answer):
    """Sends Connect and answers the target's Read Request with the segments `answer` makes of it."""

    def start(target):
        queue = nvme.Queue(target.address)
        queue.connection.hold_reads()
        queue.submit(nvme.FABRICS, nvme.CONNECT, (0, 31), out=bytes(1024))
        while not queue.connection.held_reads:
            queue.connection.pump(10)
        for segment in answer(queue.connection.held_reads[0]):
            queue.connection.send_segment(segment)
        return queue.connection.socket

    return start


def segment_noise(_):
    """Random segments, and random changes of good ones, with a right CRC"""
    choose = random.Random(3)
    for index in range(150):
        segment = bytearray(choose.choice((GOOD, wire.read_request(1, 2, 3, 4, 5, 6), wire.tagged(0, 1, 2, bytes(40)))))
        for _ in range(choose.randrange(1, 4)):
            segment[choose.randrange(len(segment))] = choose.randrange(256)
        yield Attack(f"change {index}", after_mpa(wire.fpdu(bytes(segment))), False)
        noise = struct.pack(">BB", choose.choice((0x41, 0xC1)), 0x40 | choose.randrange(16)) + choose.randbytes(60)
        yield Attack(f"noise {index}", after_mpa(wire.fpdu(noise)), False)
        yield Attack(f"raw noise {index}", after_mpa(choose.randbytes(500), crc=bool(index % 2)), False)


FAMILIES = (
    fpdu_framing,
    fpdu_truncated,
    headers,
    sequence_numbers,
    lengths_of_messages,
    more_than_the_queue_holds,
    remote_access,
    terminates,
    answering_a_read_wrongly,
    segment_noise,
)
