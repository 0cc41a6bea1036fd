"""Control: the Python host of tests/peer against the kernel's target over siw. If this fails, the Python host is to blame."""

import os

from peer import nvme
from peer.target import free_port

NQN = "nqn.2026-01.org.example:control"


def run(lab):
    port = free_port()
    guest = lab.start_guest(
        f"network\nkernel_target {NQN} 10.0.2.15 4420\nstep serving\nuntil_released\n", forward=(port, 4420)
    )
    guest.wait_step("serving")
    for crc in (False, True):
        with nvme.Host(("127.0.0.1", port), NQN, settle_s=0.3, crc=crc) as host:
            identify = nvme.succeed(host.admin.execute(nvme.IDENTIFY, 0, (1,), into=4096)).data
            assert identify[78:80] == host.cntlid.to_bytes(2, "little")
            for length, inline in ((512, True), (4096, True), (4096, False), (262144, False)):
                write_read(host.io[0], os.urandom(length), inline)
    guest.release()
    lab.finish(guest)


def write_read(queue, data, inline):
    blocks = len(data) // 512 - 1
    nvme.succeed(queue.execute(nvme.WRITE, 1, (8, 0, blocks), out=data, inline=inline))
    for invalidate in (False, True):
        read = nvme.succeed(queue.execute(nvme.READ, 1, (8, 0, blocks), into=len(data), invalidate=invalidate))
        assert read.data == data
