"""A namespace of the kernel's target grows, goes and comes back: `ironside` hears of it by the event, its device follows."""

from types import SimpleNamespace

from peer.initiator import Attached, run as command
from peer.target import free_port

NQN = "nqn.2026-01.org.example:kernel-namespaces"
MIB = 1 << 20


def run(lab):
    port = free_port()
    guest = lab.start_guest(
        """
        network
        truncate -s 32M /tmp/volume
        kernel_target "$NQN" 10.0.2.15 4420 /tmp/volume
        own="$root/subsystems/$NQN/namespaces/1"
        step serving
        until_released grow
        truncate -s 48M /tmp/volume
        echo 1 > "$own/revalidate_size"
        until_released remove
        echo 0 > "$own/enable"
        step "it went"
        until_released restore
        echo 1 > "$own/enable"
        until_released
        """,
        NQN=NQN,
        forward=(port, 4420),
    )
    guest.wait_step("serving")
    target = SimpleNamespace(address=("127.0.0.1", port), port=port, nqn=NQN)
    with Attached(lab.programs["ironside"], target, "--via", "fuse") as attached:
        assert size(attached) == 32 * MIB
        command("dd", "if=/dev/urandom", f"of={attached.device}", "bs=1M", "count=4", "oflag=direct")
        guest.release("grow")
        guest.wait_until(lambda: size(attached) == 48 * MIB, "the device does not grow")
        command("dd", "if=/dev/urandom", f"of={attached.device}", "bs=1M", "seek=44", "count=4", "oflag=direct")
        guest.release("remove")
        guest.wait_step("it went")
        guest.wait_until(lambda: not reads(attached), "a namespace that went can still be read")
        guest.release("restore")
        guest.wait_until(lambda: reads(attached), "a namespace that came back cannot be read")
    guest.release()
    lab.finish(guest)


def size(attached):
    return int(command("blockdev", "--getsize64", attached.device))


def reads(attached):
    try:
        command("dd", f"if={attached.device}", "of=/dev/null", "bs=1M", "skip=44", "count=1", "iflag=direct")
    except AssertionError:
        return False
    return True
