"""Right bytes in a wrong manner: one at a time, never read, abandoned half-way."""

import os
import time

from peer import nvme
from play import Attack

LARGE = 1 << 20


class Dribbling:
    """Wraps a socket so that every byte is a send of its own."""

    def __init__(self, socket):
        self.socket = socket

    def sendall(self, data):
        for at in range(len(data)):
            self.socket.sendall(data[at : at + 1])

    def __getattr__(self, name):
        return getattr(self.socket, name)


def byte_by_byte(_):
    """A whole session sent byte by byte works like any other"""

    def start(target):
        host = nvme.Host(target.address, target.nqn, queues=0)
        queue = host.add_queue()
        for each in (host.admin, queue):
            each.connection.socket = Dribbling(each.connection.socket)
        data = os.urandom(4096)
        nvme.succeed(queue.execute(nvme.WRITE, 1, (0xFF00, 0, 7), out=data, inline=True))
        nvme.succeed(queue.execute(nvme.WRITE, 1, (0xFF08, 0, 7), out=data))
        for slba in (0xFF00, 0xFF08):
            assert nvme.succeed(queue.execute(nvme.READ, 1, (slba, 0, 7), into=4096)).data == data
        nvme.succeed(host.admin.execute(nvme.IDENTIFY, 0, (1,), into=4096))
        host.admin.close()
        return queue.connection.socket.socket

    for index in range(4):
        yield Attack(f"session {index}", start, False)


def never_reading(_):
    """Hosts that ask for megabytes and never read them"""

    def start(target):
        host = nvme.Host(target.address, target.nqn, depth=32)
        host.admin.close()
        for _ in range(31):
            host.io[0].submit(nvme.READ, 1, (0, 0, LARGE // 512 - 1), into=LARGE)
        time.sleep(0.05)
        return host.io[0].connection.socket

    for index in range(6):
        yield Attack(f"host {index}", start, False)


def abandoned_writes(_):
    """Hosts that vanish while the target fetches from them"""

    def start(target):
        host = nvme.Host(target.address, target.nqn, depth=32)
        host.admin.close()
        host.io[0].connection.hold_reads()
        for _ in range(31):
            host.io[0].submit(nvme.WRITE, 1, (0xE000, 0, 255), out=bytes(131072))
        host.io[0].connection.pump(5)
        return host.io[0].connection.socket

    for index in range(12):
        yield Attack(f"host {index}", start, False)


def abandoned_connects(_):
    """Admin queues that vanish at each step of the way up"""

    def stop_after(steps):
        def start(target):
            queue = nvme.Queue(target.address)
            host = nvme.Host.__new__(nvme.Host)
            host.host_id, host.host_nqn, host.subsystem_nqn = nvme.uuid.uuid4(), "nqn.2026-01.org.example:host", target.nqn
            for step in (
                lambda: nvme.succeed(queue.connect(host)),
                lambda: nvme.succeed(queue.property_get(nvme.CAP, 1)),
                lambda: nvme.succeed(queue.property_set(nvme.CC, nvme.CC_ENABLE)),
                lambda: nvme.succeed(queue.execute(nvme.IDENTIFY, 0, (1,), into=4096)),
                lambda: queue.submit(nvme.ASYNC_EVENT),
            )[:steps]:
                step()
            return queue.connection.socket

        return start

    for steps in range(6):
        for index in range(4):
            yield Attack(f"{steps} steps, {index}", stop_after(steps), False)


def admin_goes_first(_):
    """I/O queues whose admin queue ends are ended too"""

    def start(target):
        host = nvme.Host(target.address, target.nqn)
        host.admin.connection.reset()
        return host.io[0].connection.socket

    for index in range(4):
        yield Attack(f"host {index}", start, True)


def many_connections(_):
    """Hundreds of hosts in a row, each gone at once"""

    def start(target):
        with nvme.Host(target.address, target.nqn, queues=1):
            return None

    for index in range(200):
        yield Attack(f"host {index}", start, False)


FAMILIES = (byte_by_byte, never_reading, abandoned_writes, abandoned_connects, admin_goes_first, many_connections)
