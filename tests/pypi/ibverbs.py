"""Stands in for the PyPI package `ibverbs`: the part of its interface that `nvmeof` uses, over iWARP on TCP sockets.

No adapter and no libibverbs is needed. Work is done while the caller polls a completion queue; there are no threads.
"""

import ctypes
import enum
from collections import deque
from types import SimpleNamespace

from peer import iwarp

CRC = True


class AccessFlags(enum.IntFlag):
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4


class WROpcode(enum.IntEnum):
    SEND = 2


class SendFlags(enum.IntFlag):
    SIGNALED = 2


class QPType(enum.IntEnum):
    RC = 2


class SendWR(SimpleNamespace):
    """A work request of the send queue: wr_id, sg_list, opcode, send_flags."""


class RecvWR(SimpleNamespace):
    """A work request of the receive queue: wr_id, sg_list."""


class QPInitAttr(SimpleNamespace):
    """How a queue pair is to be: send_cq, recv_cq, qp_type and its limits."""


class WC:
    def __init__(self, wr_id, byte_len, error=None):
        self.wr_id, self.byte_len, self.error = wr_id, byte_len, error

    def raise_for_status(self):
        if self.error:
            raise OSError(5, f"work request {self.wr_id:#x}: {self.error}")


class MR:
    """Registered memory. Its key is valid on every connection of its protection domain, which here means one."""

    def __init__(self, pd, addr, length, access):
        self.pd, self.addr, self.length, self.closed = pd, addr, length, False
        memory = (ctypes.c_ubyte * length).from_address(addr)
        rights = (iwarp.WRITE if access & AccessFlags.REMOTE_WRITE else 0) | (
            iwarp.READ if access & AccessFlags.REMOTE_READ else 0
        )
        self.rkey = self.lkey = pd.register(memory, addr, rights)

    def sge(self, length, offset=0):
        return SimpleNamespace(addr=self.addr + offset, length=length, lkey=self.lkey)

    def close(self):
        self.pd.deregister(self.rkey)
        self.closed = True


class PD:
    """Registrations are kept until the queue pair has a connection to give them to."""

    def __init__(self):
        self.connection = None
        self.waiting = []

    def reg_mr(self, addr, length, access):
        return MR(self, addr, length, access)

    def register(self, memory, base, rights):
        if self.connection is None:
            raise OSError(22, "registration before the connection stands is not needed by nvmeof")
        return self.connection.register(memory, base, rights)

    def deregister(self, rkey):
        self.connection.deregister(rkey)

    def close(self):
        pass


class CQ:
    def __init__(self):
        self.entries = deque()
        self.qp = None

    def poll(self, limit):
        if not self.entries and self.qp is not None:
            self.qp.progress()
        return [self.entries.popleft() for _ in range(min(limit, len(self.entries)))]

    def close(self):
        pass


class QP:
    def __init__(self, attributes):
        self.cq = attributes.send_cq
        assert self.cq is attributes.recv_cq and attributes.qp_type == QPType.RC
        self.cq.qp = self
        self.receives = deque()
        self.connection = None

    def post_recv(self, requests):
        self.receives.extend(requests if isinstance(requests, list) else [requests])

    def post_send(self, request):
        assert request.opcode == WROpcode.SEND
        payload = b"".join(ctypes.string_at(sge.addr, sge.length) for sge in request.sg_list)
        self.connection.send(payload)
        self.cq.entries.append(WC(request.wr_id, len(payload)))

    def progress(self):
        """Takes in what the peer sent; each message completes one posted receive."""
        try:
            self.connection.pump(0.001)
        except iwarp.Closed as closed:
            self.cq.entries.extend(WC(request.wr_id, 0, str(closed)) for request in self.receives)
            self.receives.clear()
            if not self.cq.entries:
                raise OSError(104, str(closed)) from closed
        while self.connection.messages:
            payload, _ = self.connection.messages.pop(0)
            if not self.receives:
                raise iwarp.Violation("a message without a posted receive")
            request = self.receives.popleft()
            (sge,) = request.sg_list
            if len(payload) > sge.length:
                raise iwarp.Violation("a message longer than the receive")
            ctypes.memmove(sge.addr, payload, len(payload))
            self.cq.entries.append(WC(request.wr_id, len(payload)))

    def close(self):
        pass


class Context:
    def alloc_pd(self):
        self.pd = PD()
        return self.pd

    def create_cq(self, _entries):
        return CQ()

    def query_device(self):
        return SimpleNamespace(max_qp_rd_atom=16)


class CMID:
    """A connection identifier of the active side."""

    def __init__(self, address):
        self.address = address
        self.context = Context()
        self.connected = False
        self.connection = None

    @classmethod
    def resolve(cls, host, port, source=None):
        assert source is None
        return cls((host, int(port)))

    def create_qp(self, _pd, attributes):
        self.qp = QP(attributes)
        return self.qp

    def connect(self, private_data, responder_resources=0):
        """Connects and returns the private data of the reply."""
        self.connection = iwarp.Connection(self.address, private_data, crc=CRC, ird=responder_resources)
        self.qp.connection = self.context.pd.connection = self.connection
        self.connected = True
        return self.connection.reply

    def disconnect(self):
        self.connected = False
        self.connection.close()

    def close(self):
        if self.connection is not None:
            self.connection.close()
