"""`ironside` against the kernel's target over siw: discover, connect, NBD clients, disconnect."""

from types import SimpleNamespace

from peer.initiator import Attached, run as command
from peer.target import free_port

NQN = "nqn.2026-01.org.example:kernel"


def run(lab):
    port = free_port()
    guest = lab.start_guest(
        f"network\nkernel_target {NQN} 10.0.2.15 4420\nstep serving\nuntil_released\n", forward=(port, 4420)
    )
    guest.wait_step("serving")
    ironside = lab.programs["ironside"]
    target = SimpleNamespace(address=("127.0.0.1", port), port=port, nqn=NQN)
    assert NQN in command(ironside, "discover", "-t", "rdma", "-a", "127.0.0.1", "-s", port)
    with Attached(ironside, target, "--via", "nbd") as attached:
        steps = (
            "write -P 0x5a 1M 512k",
            "read -P 0x5a 1M 512k",
            "write -P 0xa5 63M 4096",
            "write -f -P 0x11 1M 512",
            "read -P 0x11 1M 512",
            "write -z 1100k 64k",
            "read -P 0 1100k 64k",
            "read -P 0xa5 63M 4096",
            "discard 32M 1M",
            "flush",
        )
        words = [word for step in steps for word in ("-c", step)]
        said = command("qemu-io", "-f", "raw", *words, f"nbd+unix:///?socket={attached.device}")
        assert "failed" not in said, said
    guest.release()
    lab.finish(guest)
