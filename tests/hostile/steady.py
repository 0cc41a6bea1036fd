"""The well-behaved host that works beside every attack and must notice nothing."""

import os
import random
import threading

from peer import nvme


class Steady:
    """A thread that writes, reads back and compares on two I/O queues until it is stopped."""

    def __init__(self, target):
        self.host = nvme.Host(target.address, target.nqn, queues=2, crc=True)
        self.stop = threading.Event()
        self.rounds = self.seen = 0
        self.problem = None
        self.thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.host.close()

    def _work(self):
        choose = random.Random(1)
        try:
            while not self.stop.is_set():
                for queue in self.host.io:
                    blocks = choose.choice((1, 8, 32))
                    self._round_trip(queue, choose.randrange(64) * 32, blocks)
                nvme.succeed(self.host.admin.execute(nvme.KEEP_ALIVE))
                self.rounds += 1
                self.stop.wait(0.02)
        except Exception as problem:
            self.problem = problem

    @staticmethod
    def _round_trip(queue, slba, blocks):
        data = os.urandom(blocks * 512)
        nvme.succeed(queue.execute(nvme.WRITE, 1, (slba, 0, blocks - 1), out=data, inline=blocks == 8))
        read = nvme.succeed(queue.execute(nvme.READ, 1, (slba, 0, blocks - 1), into=len(data)))
        if read.data != data:
            raise AssertionError(f"block {slba} reads back otherwise than written")

    def check(self):
        """Fails if the host noticed anything or stood still since the last check."""
        if self.problem:
            raise AssertionError(f"the well-behaved host noticed: {self.problem!r}") from self.problem
        if self.rounds == self.seen:
            raise AssertionError("the well-behaved host stood still")
        self.seen = self.rounds
