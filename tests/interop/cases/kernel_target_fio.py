"""fio verifies what `ironside` attached from the kernel's target: NBD and loop device, every size and depth, CRC on and off."""

from types import SimpleNamespace

from peer.initiator import Attached, run as command
from peer.target import free_port

NQN = "nqn.2026-01.org.example:kernel-fio"
JOBS = (
    "--rw=randrw --bs=512 --iodepth=1 --size=128k",
    "--rw=randrw --bs=4k --iodepth=128 --size=2m",
    "--rw=write --bs=1m --iodepth=8 --size=8m",
    "--rw=randwrite --bs=64k --iodepth=32 --size=4m",
    "--rw=randrw --bsrange=512-1m --blockalign=512 --iodepth=16 --size=4m",
)


def run(lab):
    port = free_port()
    guest = lab.start_guest(
        f"network\nkernel_target {NQN} 10.0.2.15 4420\nstep serving\nuntil_released\n", cpus=2, forward=(port, 4420)
    )
    guest.wait_step("serving")
    target = SimpleNamespace(address=("127.0.0.1", port), port=port, nqn=NQN)
    for crc, queues in (("on", 2), ("peer", 1)):
        options = ("--crc", crc, "-i", str(queues), "-Q", "128")
        with Attached(lab.programs["ironside"], target, "--via", "nbd", *options) as attached:
            for job in JOBS:
                fio("nbd", f"--uri=nbd+unix:///?socket={attached.device}", job)
    with Attached(lab.programs["ironside"], target, "--via", "fuse") as attached:
        for job in JOBS[1:3]:
            fio("libaio", f"--filename={attached.device} --direct=1", job)
    guest.release()
    lab.finish(guest)


def fio(engine, on, job):
    verify = "--verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0"
    command("fio", "--name=verify", f"--ioengine={engine}", *on.split(), *job.split(), *verify.split())
