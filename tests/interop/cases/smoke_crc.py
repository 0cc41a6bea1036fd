"""The kernel's host with MPA checksums, which this build of siw asks for, over two I/O queues, on sectors of 4096 bytes."""

import smoke


def run(lab):
    smoke.run(lab, siw="siw-crc", crc="peer", queues=2)
