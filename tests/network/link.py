#!/usr/bin/env python3
"""An IP link between two network namespaces that is as bad as it is told to be.

Where a kernel has netem it could do this; many have not, so packets go through two TUN devices and this process, which
loses, delays and reorders them. Usage: link.py NAMESPACE ADDRESS NAMESPACE ADDRESS MTU SEED. It says `ready` when the
link is up, and reads commands from standard input: `set loss=0.01 delay_ms=20 jitter_ms=5 reorder=0.25`, `down`, `up`; each is answered by how many
packets were lost and how many overtook others so far.
"""

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 1, 0x1000
CLONE_NEWNET = 0x40000000
DEVICE = "ironside0"
# A router with more waiting than this drops what comes.
QUEUE = 10_000


def main():
    namespaces, mtu, seed = ((sys.argv[1], sys.argv[2]), (sys.argv[3], sys.argv[4])), int(sys.argv[5]), sys.argv[6]
    ends = [open_end(namespace, address, mtu) for namespace, address in namespaces]
    print("ready", flush=True)
    Link(ends, mtu, random.Random(seed)).run()


def open_end(namespace, address, mtu):
    """A TUN device in a namespace, up and with its address: packets are read and written by the descriptor."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"entering {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    for words in (
        f"link set {DEVICE} mtu {mtu} txqueuelen 1000 up",
        f"address add {address}/24 dev {DEVICE}",
        "link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return tun


class Link:
    def __init__(self, ends, mtu, random_numbers):
        self.peer = {ends[0]: ends[1], ends[1]: ends[0]}
        self.mtu, self.random = mtu, random_numbers
        self.loss = self.delay_ms = self.jitter_ms = self.reorder = 0.0
        self.is_up = True
        self.lost = self.overtakers = 0
        self.waiting, self.order = [], itertools.count()
        self.last_due = dict.fromkeys(ends, 0.0)

    def run(self):
        while True:
            pause = max(0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            readable, _, _ = select.select([*self.peer, sys.stdin], [], [], pause)
            if sys.stdin in readable:
                line = sys.stdin.readline()
                if not line:
                    return
                self.obey(line.split())
            for end in self.peer:
                if end in readable:
                    self.take(end)
            self.deliver()

    def obey(self, words):
        match words:
            case ["set", *settings]:
                for setting in settings:
                    name, value = setting.split("=")
                    setattr(self, name, float(value))
            case ["down"]:
                self.is_up = False
                self.waiting.clear()
            case ["up"]:
                self.is_up = True
        print(f"lost={self.lost} overtakers={self.overtakers}", flush=True)

    def take(self, end):
        """Reads what an end sends and decides its fate."""
        for _ in range(64):
            try:
                packet = os.read(end, self.mtu)
            except BlockingIOError:
                return
            if not self.is_up or len(self.waiting) >= QUEUE or self.random.random() < self.loss:
                self.lost += 1
                continue
            to = self.peer[end]
            due = time.monotonic() + (self.delay_ms + self.random.uniform(0, self.jitter_ms)) / 1000
            if self.random.random() < self.reorder:
                self.overtakers += due < self.last_due[to]
            else:
                due = self.last_due[to] = max(due, self.last_due[to])
            heapq.heappush(self.waiting, (due, next(self.order), to, packet))

    def deliver(self):
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(self.waiting)
            try:
                os.write(to, packet)
            except BlockingIOError:
                # The receiver's queue is full: a packet lost like any other.
                pass


if __name__ == "__main__":
    main()
