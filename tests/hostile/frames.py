"""Attacks on the MPA start-up and on the private data it carries."""

import random
import struct

from peer import nvme, wire
from play import Attack, dial, say

CM = nvme.private_data(0, 32)
GOOD = wire.mpa_frame(wire.REQUEST_KEY, wire.enhanced(16, 0) + CM)


def mpa_keys(_):
    """MPA request: the key wrong in each byte, a reply's key, other protocols"""
    for at in range(16):
        yield Attack(f"key byte {at}", say(GOOD[:at] + bytes([GOOD[at] ^ 0x20]) + GOOD[at + 1 :]), True)
    yield Attack("a reply", say(wire.REPLY_KEY + GOOD[16:]), True)
    for other in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", bytes(64), b"\xff" * 64, b"\x16\x03\x01" + bytes(61)):
        yield Attack(f"{other[:8]!r}", say(other), True)


def mpa_flags_and_revisions(_):
    """MPA request: every flag byte, every revision out of range"""
    for flags in range(256):
        fatal = bool(flags & (wire.MARKERS | wire.REJECT))
        yield Attack(f"flags {flags:#04x}", say(wire.mpa_frame(wire.REQUEST_KEY, GOOD[20:], flags)), fatal)
    for revision in (0, 3, 4, 0x7F, 0x80, 0xFF):
        yield Attack(f"revision {revision}", say(wire.mpa_frame(wire.REQUEST_KEY, GOOD[20:], revision=revision)), revision > 2)


def mpa_lengths(_):
    """MPA request: private data of every questionable length, declared longer, shorter, not at all"""
    body = GOOD[20:]
    for length in (0, 1, 3, 4, 5, 7, 31, 35):
        yield Attack(f"{length} bytes", say(wire.mpa_frame(wire.REQUEST_KEY, body[:length])), True)
    for length in (255, 256, 511, 512):
        yield Attack(f"{length} bytes", say(wire.mpa_frame(wire.REQUEST_KEY, body.ljust(length, b"\0"))), False)
    for length in (513, 4096, 65535):
        yield Attack(f"{length} bytes", say(wire.mpa_frame(wire.REQUEST_KEY, body.ljust(length, b"\0"))), True)
        yield Attack(f"{length} declared", say(wire.mpa_frame(wire.REQUEST_KEY, body, length=length)), True)
    for revision, flags in ((1, 0), (1, wire.ENHANCED)):
        frame = wire.mpa_frame(wire.REQUEST_KEY, b"", flags, revision)
        yield Attack(f"revision {revision}, no data", say(frame), True)


def mpa_truncated(_):
    """MPA request: cut off after every byte and left to stand, until the target's patience ends"""
    for length in range(len(GOOD)):
        yield Attack(f"{length} bytes", say(GOOD[:length]), True)


def mpa_enhanced_block(_):
    """MPA request: read depths and ready-to-receive bits out of range or without sense"""
    for first in (0x0000, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0xC000, 0xFFFF):
        for second in (0x0000, 0x3FFF, 0x4000, 0x8000, 0xC000, 0xFFFF):
            body = struct.pack(">HH", first, second) + CM
            yield Attack(f"{first:#x} {second:#x}", say(wire.mpa_frame(wire.REQUEST_KEY, body)), False)


def cm_fields(_):
    """NVMe/RDMA private data: every field out of range"""
    cases = {
        "recfmt 1": (nvme.private_data(0, 32, recfmt=1), True),
        "recfmt FFFF": (nvme.private_data(0, 32, recfmt=0xFFFF), True),
        "qid FFFF": (nvme.private_data(0xFFFF, 32), False),
        "hsqsize 0": (nvme.private_data(1, 32, hsqsize=0), False),
        "hsqsize FFFF": (nvme.private_data(1, 32, hsqsize=0xFFFF), False),
        "admin hsqsize FFFF": (nvme.private_data(0, 32, hsqsize=0xFFFF), True),
        "hrqsize 0": (nvme.private_data(1, 32, hrqsize=0), False),
        "hrqsize FFFF": (nvme.private_data(1, 32, hrqsize=0xFFFF), False),
        "cntlid FFFF": (nvme.private_data(1, 32, cntlid=0xFFFF), False),
        "all ones": (b"\xff" * 32, True),
        "all zeros": (bytes(32), False),
        "reserved set": (CM[:10] + b"\xff" * 22, False),
    }
    for name, (private_data, fatal) in cases.items():
        yield Attack(name, say(wire.mpa_frame(wire.REQUEST_KEY, wire.enhanced(16, 0) + private_data)), fatal)


def mpa_eager(_):
    """Bytes right behind the MPA request, before any reply"""
    for extra in (b"\0", b"\xff" * 20, wire.fpdu(wire.untagged(wire.SEND, 1, bytes(64))), bytes(100000)):
        yield Attack(f"{len(extra)} bytes", say(GOOD + extra), False)


def mpa_noise(_):
    """Random bytes, random changes of a good request"""
    choose = random.Random(2)
    for index in range(100):
        frame = bytearray(GOOD)
        for _ in range(choose.randrange(1, 6)):
            frame[choose.randrange(len(frame))] = choose.randrange(256)
        yield Attack(f"change {index}", say(bytes(frame)), False)
        yield Attack(f"noise {index}", say(choose.randbytes(choose.randrange(1, 200))), False)


def tcp_only(_):
    """Connections that say nothing at all"""
    for index in range(100):
        yield Attack(f"connection {index}", dial, True)


FAMILIES = (
    mpa_keys,
    mpa_flags_and_revisions,
    mpa_lengths,
    mpa_truncated,
    mpa_enhanced_block,
    cm_fields,
    mpa_eager,
    mpa_noise,
    tcp_only,
)
