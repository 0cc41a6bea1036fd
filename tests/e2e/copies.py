"""Copies blocks of a namespace by the Copy command, over iWARP of its own: copies.py PORT NQN.

What has to be there afterwards is kept in memory, with the same copies made in it, and compared with what is read.
"""

import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from peer import nvme  # noqa: E402

COPY, FUA = 0x19, 1 << 30
BLOCKS = 256


def main():
    port, nqn = sys.argv[1:]
    chance = random.Random(1)
    with nvme.Host(("127.0.0.1", int(port)), nqn) as host:
        queue = host.io[0]
        identified = nvme.succeed(host.admin.execute(nvme.IDENTIFY, 1, (0,), into=4096)).data
        size = 1 << identified[128 + 4 * (identified[26] & 15) + 2]
        most = struct.unpack_from("<I", identified, 76)[0]
        # The second half is not there: holes, which are copied too.
        expected = [chance.randbytes(size) for _ in range(BLOCKS // 2)] + [bytes(size)] * (BLOCKS // 2)
        for at in range(BLOCKS // 2):
            nvme.succeed(queue.execute(nvme.WRITE, 1, (at, 0, 0), out=expected[at]))
        for round in range(200):
            sources, left = [], most
            for _ in range(chance.randrange(1, 6)):
                if left:
                    count = chance.randrange(1, min(left, 9) + 1)
                    sources.append((chance.randrange(BLOCKS - count), count))
                    left -= count
            data = [block for at, count in sources for block in expected[at : at + count]]
            to = chance.randrange(BLOCKS - len(data))
            ranges = b"".join(struct.pack("<QQH14x", 0, at, count - 1) for at, count in sources)
            dwords = (to, 0, len(sources) - 1 | (FUA if round % 10 == 0 else 0))
            nvme.succeed(queue.execute(COPY, 1, dwords, out=ranges))
            expected[to : to + len(data)] = data
        for at, block in enumerate(expected):
            read = nvme.succeed(queue.execute(nvme.READ, 1, (at, 0, 0), into=size)).data
            assert read == block, f"block {at} is not what was copied there"


if __name__ == "__main__":
    main()
