"""Power is cut under writes: all that was acknowledged with FUA, or before a flush, is on the drive's medium.

QEMU logs each write and flush which the emulated drive got (its filter blklogwrites). From the log the worst is made that
a drive with a volatile cache may do: of what came after its last flush, nothing is left. Once the drive is an NVMe one, whose
FUA QEMU takes for a plain write, so that FUA is held against the image as it is; once it has no FUA, so that all is flushed.
"""

import random
import struct
import zlib

from peer import iwarp, nvme
from peer.target import free_port

NQN = "nqn.2026-01.org.example:power"
SIZE = 16 << 20
BLOCK, SECTOR, BLOCKS = 4096, 512, 256
DEPTH = 8
FUA = 1 << 30
LOG_FLUSH, LOG_FUA, LOG_DISCARD = 1, 2, 4


DRIVES = ("nvme,serial=power", "virtio-blk-pci")


def run(lab, cuts=2):
    for cut in range(cuts):
        drive, seed = DRIVES[cut % 2], random.randrange(1 << 32)
        print(f"   cut {cut + 1}: {drive}, seed {seed}", flush=True)
        image, log = (lab.place / f"{name}-{cut}" for name in ("drive", "drive.log"))
        for file, size in ((image, SIZE), (log, 1 << 30)):
            with file.open("wb") as made:
                made.truncate(size)
        writer = write_until_cut(lab, drive, image, log, random.Random(seed))
        worst = bytearray(SIZE)
        replay(log, worst)
        writer.check(worst, writer.flushed if drive.startswith("nvme") else writer.durable)
        writer.check(image.read_bytes(), writer.durable)
        image.unlink()
        log.unlink()


def write_until_cut(lab, drive, image, log, choices):
    port = free_port()
    guest = lab.start_guest(
        """
        network
        must modprobe -a nvme virtio_blk
        wait_until '[ -b /dev/nvme0n1 ] || [ -b /dev/vda ]'
        serve --provider iwarp --namespace "$(ls /dev/nvme0n1 /dev/vda 2>/dev/null)"
        step "serving"
        until_released
        """,
        forward=(port, 4420),
        devices=[
            *("-blockdev", f"driver=file,node-name=image,filename={image}"),
            *("-blockdev", f"driver=file,node-name=log,filename={log}"),
            *("-blockdev", "driver=blklogwrites,node-name=logged,file=image,log=log,log-super-update-interval=1"),
            *("-device", f"{drive},drive=logged"),
        ],
        programs=("target",),
        NQN=NQN,
    )
    guest.wait_step("serving")
    with nvme.Host(("127.0.0.1", port), NQN) as host:
        writer = Writer(host.io[0], choices)
        for _ in range(choices.randrange(20, 60)):
            writer.step()
        writer.submit_batch()
        guest.cut_power()
        writer.take_what_came()
    assert any(writer.flushed) and writer.forced, "nothing was promised before the cut"
    return writer


class Writer:
    """Writes numbered blocks, and remembers which number each block is promised to have at least."""

    def __init__(self, queue, choices):
        self.queue, self.choices = queue, choices
        self.number, self.forced = 0, 0
        self.written, self.acknowledged = [0] * BLOCKS, [0] * BLOCKS
        self.flushed, self.durable = [0] * BLOCKS, [0] * BLOCKS
        self.outstanding = {}

    def step(self):
        self.submit_batch()
        for cid in list(self.outstanding):
            self.take(cid, self.queue.wait(cid))
        if self.choices.random() < 0.4:
            promised = list(self.acknowledged)
            nvme.succeed(self.queue.execute(nvme.FLUSH, 1))
            self.flushed = promised
            self.durable = [max(pair) for pair in zip(promised, self.durable)]

    def submit_batch(self):
        # No block twice in a batch: nothing is said of the order of writes under way together.
        for block in self.choices.sample(range(BLOCKS), DEPTH):
            fua, inline = self.choices.random() < 0.3, self.choices.random() < 0.5
            self.number += 1
            self.written[block] = self.number
            dwords = (block * BLOCK // SECTOR, 0, BLOCK // SECTOR - 1 | (FUA if fua else 0))
            cid = self.queue.submit(nvme.WRITE, 1, dwords, out=content(block, self.number), inline=inline)
            self.outstanding[cid] = (block, self.number, fua)

    def take(self, cid, completion):
        nvme.succeed(completion)
        block, number, fua = self.outstanding.pop(cid)
        self.acknowledged[block] = number
        if fua:
            self.durable[block] = number
            self.forced += 1

    def take_what_came(self):
        try:
            self.queue.poll()
        except iwarp.Closed:
            pass
        for cid in list(self.outstanding):
            if cid in self.queue.completions:
                self.take(cid, self.queue.completions.pop(cid))

    def check(self, medium, promises):
        for block in range(BLOCKS):
            found = medium[block * BLOCK : (block + 1) * BLOCK]
            number = struct.unpack_from("<Q", found)[0]
            promised, newest = promises[block], self.written[block]
            assert promised <= number <= newest, f"block {block}: promised {promised}, found {number}, written {newest}"
            # What was never promised may be torn; the drive was cut off in the middle of it.
            if number == promised and number:
                assert found == content(block, number), f"block {block} does not hold what was written as {number}"


def content(block, number):
    head = struct.pack("<QQ", number, block)
    return head + random.Random(zlib.crc32(head)).randbytes(BLOCK - len(head))


def replay(log, medium):
    """Puts into `medium` what the log says was made durable. Its format is that of Linux' dm-log-writes."""
    with log.open("rb") as file:
        magic, version, count, sector_size = struct.unpack("<QQQI", file.read(28))
        assert (magic, version) == (0x6A736677736872, 1), (hex(magic), version)
        file.seek(sector_size)
        cached = []
        for _ in range(count):
            sector, sectors, flags, _ = struct.unpack("<4Q", file.read(sector_size)[:32])
            data = b"" if flags & LOG_DISCARD else file.read(sectors * sector_size)
            write = (sector * sector_size, bytes(sectors * sector_size) if flags & LOG_DISCARD else data)
            if flags & LOG_FLUSH:
                for at, kept in cached:
                    medium[at : at + len(kept)] = kept
                cached = []
            if flags & LOG_FUA:
                medium[write[0] : write[0] + len(write[1])] = write[1]
            elif sectors:
                cached.append(write)
