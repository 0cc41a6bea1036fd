"""The kernel's host with MPA checksums, which this build of siw asks for, over two I/O queues."""

import smoke


def run(lab):
    smoke.run(lab, siw="siw-crc", crc="peer", queues="2")
