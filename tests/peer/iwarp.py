"""One iWARP connection of the active side over a TCP socket: MPA start-up, Send, RDMA Write and RDMA Read, strictly.

Whatever the peer does that the specifications forbid raises `Violation`; this side is there to judge.
"""

import itertools
import select
import socket
import struct
import time

from . import wire
from .wire import NotGranted, Violation

MSS_PAYLOAD = 1400
READ, WRITE = 1, 2


class Refused(Exception):
    """The peer answered the MPA request with a reject; `private_data` says why."""

    def __init__(self, private_data):
        super().__init__(f"MPA reject with {private_data.hex()}")
        self.private_data = private_data


class Closed(Exception):
    """The connection ended; `terminated` is what a Terminate message said, if one came."""

    def __init__(self, terminated=None):
        super().__init__(f"connection closed by the peer ({terminated or 'without Terminate'})")
        self.terminated = terminated


class Region:
    """Memory the peer may reach: `memory` begins at tagged offset `base`, for READ, WRITE or both."""

    def __init__(self, stag, memory, base, rights):
        self.stag, self.memory, self.base, self.rights = stag, memory, base, rights

    def slice(self, offset, length, right):
        begin = offset - self.base
        if begin < 0 or begin + length > len(self.memory):
            raise NotGranted(f"STag {self.stag:#x}: {length} bytes at {offset:#x} are out of bounds")
        if not self.rights & right:
            raise NotGranted(f"STag {self.stag:#x}: the access is not granted")
        return self.memory[begin : begin + length]


class Connection:
    """Dials and completes the MPA start-up; `reply` is the peer's private data.

    `settle_s` is how long to wait before the first FPDU: siw overlooks one that comes too soon after its reply.
    """

    # STags never repeat within a run, so that a stale one is noticed.
    _stags = itertools.count(0x100)

    def __init__(self, address, private_data, *, crc=True, revision=2, ird=16, ready=None, settle_s=0, timeout_s=10):
        self.regions = {}
        self.messages = []
        self.terminated = None
        self.writes_received = self.reads_answered = 0
        self._send_msn = 1
        self._expected_msn = {0: 1, 1: 1, 2: 1}
        self.held_reads, self._holding = [], False
        self._ready_read = False
        self._untagged = bytearray()
        self._untagged_opcode = None
        self._write = None
        self._input = bytearray()
        self.ird = ird
        self.timeout_s = timeout_s
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._start(private_data, crc, revision, ready)
            time.sleep(settle_s)
            self._send_ready(ready)
        except BaseException:
            self.socket.close()
            raise

    def _start(self, private_data, crc, revision, ready):
        """Request and Reply; `ready` is None, "write" or "read": which ready-to-receive message to offer."""
        flags = wire.CRC if crc else 0
        block = b""
        if revision == 2:
            flags |= wire.ENHANCED
            offered = {None: 0, "write": wire.WITH_WRITE, "read": wire.WITH_READ}[ready]
            block = wire.enhanced(self.ird, 1 if ready else 0, wire.PEER_TO_PEER if ready else 0, offered)
        self.socket.sendall(wire.mpa_frame(wire.REQUEST_KEY, block + private_data, flags, revision))
        header = self.read_exactly(20)
        key, reply_flags, reply_revision, length = wire.parse_mpa_header(header)
        if key != wire.REPLY_KEY or reply_revision != revision or length > 512:
            raise Violation(f"MPA reply header {header.hex()}")
        if reply_flags & wire.MARKERS or reply_flags & 0x0F:
            raise Violation(f"MPA reply flags {reply_flags:#04x}")
        self.reply = self.read_exactly(length)
        if revision == 2:
            if not reply_flags & wire.ENHANCED or length < 4:
                raise Violation("a revision 2 reply without its enhanced block")
            word_ird, word_ord = struct.unpack(">HH", self.reply[:4])
            self.peer_ord = word_ord & 0x3FFF
            self.reply = self.reply[4:]
            if self.peer_ord > self.ird:
                raise Violation(f"the peer wants {self.peer_ord} reads of a side that takes {self.ird}")
            if ready and not (reply_flags & wire.REJECT):
                chosen = word_ord & 0xC000
                if not word_ird & wire.PEER_TO_PEER or chosen != offered:
                    raise Violation(f"no agreement on the ready-to-receive message: {word_ird:#x} {word_ord:#x}")
        if reply_flags & wire.REJECT:
            raise Refused(self.reply)
        if crc and not reply_flags & wire.CRC:
            raise Violation("this side asked for CRC and the reply says no")
        self.crc = bool(reply_flags & wire.CRC)

    def _send_ready(self, ready):
        if ready == "write":
            self.send_segment(wire.tagged(wire.WRITE, 1, 0))
        elif ready == "read":
            self.send_segment(wire.read_request(1, 0, 0, 0, 1, 0))
            self._ready_read = True
            while self._ready_read:
                self.pump(self.timeout_s)

    # Memory ---------------------------------------------------------------------------------------------------------

    def register(self, memory, base=0, rights=READ | WRITE):
        stag = next(self._stags) << 8 | 0x5A
        self.regions[stag] = Region(stag, memoryview(memory).cast("B"), base, rights)
        return stag

    def deregister(self, stag):
        self.regions.pop(stag, None)

    # Sending --------------------------------------------------------------------------------------------------------

    def send(self, payload):
        """One Send message, segmented as for an Ethernet."""
        pieces = range(0, max(len(payload), 1), MSS_PAYLOAD)
        for begin in pieces:
            piece = payload[begin : begin + MSS_PAYLOAD]
            last = begin == pieces[-1]
            self.send_segment(wire.untagged(wire.SEND, self._send_msn, piece, begin, last))
        self._send_msn += 1

    def send_segment(self, ulpdu):
        self.send_bytes(wire.fpdu(ulpdu, self.crc))

    def send_bytes(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self._ended()

    # Receiving ------------------------------------------------------------------------------------------------------

    def pump(self, timeout_s):
        """Takes in what has arrived, waiting at most `timeout_s` for something. Raises Closed at the end."""
        if not select.select([self.socket], [], [], timeout_s)[0]:
            return False
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            self._ended()
        self._input += data
        while (frame := self._next_frame()) is not None:
            self._on_segment(wire.parse_segment(frame))
        return True

    def receive(self, timeout_s=None):
        """The next Send message as (payload, STag to invalidate or None)."""
        while not self.messages:
            if not self.pump(timeout_s or self.timeout_s):
                raise TimeoutError("no message from the peer")
        return self.messages.pop(0)

    def read_exactly(self, length):
        data = b""
        while len(data) < length:
            try:
                piece = self.socket.recv(length - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise Closed()
            data += piece
        return data

    def _ended(self):
        raise Closed(self.terminated)

    def _next_frame(self):
        if len(self._input) < 2:
            return None
        length = int.from_bytes(self._input[:2], "big")
        padded = 2 + length + (-(2 + length) % 4)
        if len(self._input) < padded + 4:
            return None
        frame = bytes(self._input[: padded + 4])
        del self._input[: padded + 4]
        checksum = int.from_bytes(frame[padded:], "little")
        if self.crc and checksum != wire.crc32c(frame[:padded]):
            raise Violation(f"CRC of an FPDU is wrong: {frame[:24].hex()}")
        if any(frame[2 + length : padded]):
            raise Violation("padding that is not zero")
        return frame[2 : 2 + length]

    def _on_segment(self, segment):
        if isinstance(segment, wire.Tagged):
            self._on_tagged(segment)
        else:
            self._on_untagged(segment)

    def _on_tagged(self, segment):
        if segment.opcode == wire.READ_RESPONSE:
            if not self._ready_read or segment.payload or not segment.last:
                raise Violation("a Read Response nobody asked for")
            self._ready_read = False
            return
        expected = self._write
        if expected and expected != (segment.stag, segment.offset):
            raise Violation("the segments of an RDMA Write are not contiguous")
        self._write = None if segment.last else (segment.stag, segment.offset + len(segment.payload))
        if segment.last:
            self.writes_received += 1
        if segment.payload:
            region = self._region(segment.stag)
            region.slice(segment.offset, len(segment.payload), WRITE)[:] = segment.payload

    def _on_untagged(self, segment):
        if segment.msn != self._expected_msn[segment.queue]:
            raise Violation(f"MSN {segment.msn} on queue {segment.queue}, expected {self._expected_msn[segment.queue]}")
        if segment.offset != len(self._untagged) or self._untagged_opcode not in (None, segment.opcode):
            raise Violation("the segments of an untagged message are not contiguous")
        self._untagged += segment.payload
        self._untagged_opcode = segment.opcode
        if not segment.last:
            return
        payload = bytes(self._untagged)
        self._untagged.clear()
        self._untagged_opcode = None
        self._expected_msn[segment.queue] += 1
        if segment.opcode == wire.TERMINATE:
            self.terminated = wire.parse_terminate(payload)
        elif segment.opcode == wire.READ_REQUEST:
            self.held_reads.append(wire.parse_read_request(payload))
            if not self._holding:
                self.release_reads()
        else:
            self._on_message(segment, payload)

    def _on_message(self, segment, payload):
        invalidated = None
        if segment.opcode in (wire.SEND_INVALIDATE, wire.SEND_SOLICITED_INVALIDATE):
            invalidated = segment.invalidate
            self._region(invalidated)
            self.deregister(invalidated)
        elif segment.invalidate:
            raise Violation("a Send whose reserved field is not zero")
        self.messages.append((payload, invalidated))

    def hold_reads(self):
        """From now on Read Requests are only collected, in `held_reads`."""
        self._holding = True

    def release_reads(self):
        """Answers the Read Requests held, and from now on each at once."""
        self._holding = False
        while self.held_reads:
            self._answer_read(self.held_reads.pop(0))

    def _answer_read(self, request):
        self.reads_answered += 1
        source = b""
        if request.length:
            source = self._region(request.source_stag).slice(request.source_offset, request.length, READ)
        pieces = range(0, max(request.length, 1), MSS_PAYLOAD)
        answer = bytearray()
        for begin in pieces:
            piece = bytes(source[begin : begin + MSS_PAYLOAD])
            offset = request.sink_offset + begin
            last = begin == pieces[-1]
            answer += wire.fpdu(wire.tagged(wire.READ_RESPONSE, request.sink_stag, offset, piece, last), self.crc)
        self.send_bytes(answer)

    def _region(self, stag):
        if stag not in self.regions:
            raise NotGranted(f"STag {stag:#x} is not registered")
        return self.regions[stag]

    # Ending ---------------------------------------------------------------------------------------------------------

    def close(self):
        self.socket.close()

    def reset(self):
        """Ends the connection with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
