"""MPA, DDP and RDMAP as bytes: how frames and headers are built and taken apart, with nothing remembered.

Builders take every field, so that a hostile peer can send what a decent one never would.
"""

import struct
from collections import namedtuple

REQUEST_KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
MARKERS, CRC, REJECT, ENHANCED = 0x80, 0x40, 0x20, 0x10
PEER_TO_PEER = 0x8000
WITH_WRITE, WITH_READ = 0x8000, 0x4000

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, SEND_SOLICITED, SEND_SOLICITED_INVALIDATE, TERMINATE = range(8)
TAGGED_OPCODES = (WRITE, READ_RESPONSE)
QUEUE_NUMBER = {SEND: 0, SEND_INVALIDATE: 0, SEND_SOLICITED: 0, SEND_SOLICITED_INVALIDATE: 0, READ_REQUEST: 1, TERMINATE: 2}
TAGGED_LENGTH, UNTAGGED_LENGTH = 14, 18

Tagged = namedtuple("Tagged", "opcode last stag offset payload")
Untagged = namedtuple("Untagged", "opcode last invalidate queue msn offset payload")
ReadRequest = namedtuple("ReadRequest", "sink_stag sink_offset length source_stag source_offset")
MpaFrame = namedtuple("MpaFrame", "key flags revision private_data")
Terminated = namedtuple("Terminated", "layer type code")


class Violation(Exception):
    """The peer sent what the specifications forbid."""


class NotGranted(Violation):
    """The peer reached for memory it was not given. After a lie of ours that is what it must do: see the callers."""


def _crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc32c_table()


def crc32c(data):
    value, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        value = table[(value ^ byte) & 255] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def mpa_frame(key, private_data=b"", flags=CRC | ENHANCED, revision=2, length=None):
    """An MPA Request or Reply frame (RFC 5044, section 7.1.1); `length` lies about the private data's."""
    return key + struct.pack(">BBH", flags, revision, len(private_data) if length is None else length) + private_data


def parse_mpa_header(header):
    """(key, flags, revision, private data length) of the first 20 bytes."""
    return (header[:16], *struct.unpack(">BBH", header[16:20]))


def enhanced(ird, ord, control_a=0, control_b=0):
    """The four bytes that precede the private data in revision 2 (RFC 6581, section 9)."""
    return struct.pack(">HH", ird | control_a, ord | control_b)


def fpdu(ulpdu, crc=True, length=None, checksum=None):
    """One FPDU: length, ULPDU, padding to four bytes, CRC32C stored little-endian (RFC 5044 section 4)."""
    frame = struct.pack(">H", len(ulpdu) if length is None else length) + ulpdu
    frame += bytes(-len(frame) % 4)
    if checksum is None:
        checksum = crc32c(frame) if crc else 0
    return frame + struct.pack("<I", checksum)


def tagged(opcode, stag, offset, payload=b"", last=True, ddp=0x81, rdmap=0x40):
    return struct.pack(">BBIQ", ddp | (0x40 if last else 0), rdmap | opcode, stag, offset) + payload


def untagged(opcode, msn, payload=b"", offset=0, last=True, invalidate=0, queue=None, ddp=0x01, rdmap=0x40):
    queue = QUEUE_NUMBER.get(opcode, 0) if queue is None else queue
    control = struct.pack(">BB", ddp | (0x40 if last else 0), rdmap | opcode)
    return control + struct.pack(">IIII", invalidate, queue, msn, offset) + payload


def read_request(msn, sink_stag, sink_offset, length, source_stag, source_offset):
    body = struct.pack(">IQIIQ", sink_stag, sink_offset, length, source_stag, source_offset)
    return untagged(READ_REQUEST, msn, body)


def parse_segment(ulpdu):
    """A DDP segment as Tagged or Untagged; reserved bits and versions are checked (RFC 5041, RFC 5040)."""
    if len(ulpdu) < TAGGED_LENGTH:
        raise Violation(f"a ULPDU of {len(ulpdu)} bytes")
    ddp, rdmap = ulpdu[0], ulpdu[1]
    if ddp & 0x3F != 1:
        raise Violation(f"DDP control {ddp:#04x}: reserved bits set or version not 1")
    if rdmap & 0xF0 != 0x40:
        raise Violation(f"RDMAP control {rdmap:#04x}: reserved bits set or version not 1")
    opcode, last = rdmap & 15, bool(ddp & 0x40)
    if bool(ddp & 0x80) != (opcode in TAGGED_OPCODES):
        raise Violation(f"opcode {opcode} in the wrong buffer model")
    if ddp & 0x80:
        stag, offset = struct.unpack(">IQ", ulpdu[2:14])
        return Tagged(opcode, last, stag, offset, ulpdu[14:])
    if len(ulpdu) < UNTAGGED_LENGTH:
        raise Violation(f"an untagged ULPDU of {len(ulpdu)} bytes")
    invalidate, queue, msn, offset = struct.unpack(">IIII", ulpdu[2:18])
    if opcode not in QUEUE_NUMBER or queue != QUEUE_NUMBER[opcode]:
        raise Violation(f"opcode {opcode} on queue {queue}")
    return Untagged(opcode, last, invalidate, queue, msn, offset, ulpdu[18:])


def parse_read_request(payload):
    if len(payload) != 28:
        raise Violation(f"a Read Request of {len(payload)} bytes")
    return ReadRequest(*struct.unpack(">IQIIQ", payload))


def parse_terminate(payload):
    """What a Terminate message complains of (RFC 5040 section 4.8)."""
    if len(payload) < 4:
        raise Violation(f"a Terminate of {len(payload)} bytes")
    return Terminated(payload[0] >> 4, payload[0] & 15, payload[1])
