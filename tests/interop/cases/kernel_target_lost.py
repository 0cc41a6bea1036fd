"""The kernel's target goes away and comes back under `ironside`'s load: nothing is lost; when it stays away, I/O fails in time."""

import subprocess
import time
from types import SimpleNamespace

from peer.initiator import Attached
from peer.target import free_port

NQN = "nqn.2026-01.org.example:kernel-lost"
# What its kernel says of a target which is taken away under a host.
EXPECTED = "queue|ctrl|nvmet"


def run(lab):
    port = free_port()
    guest = lab.start_guest(
        """
        network
        kernel_target "$NQN" 10.0.2.15 4420
        offered="$root/ports/1/subsystems/$NQN"
        step serving
        for round in 1 2; do
            until_released gone$round
            rm "$offered"
            step "gone $round"
            until_released back$round
            ln -s "$root/subsystems/$NQN" "$offered" || fail "it does not come back"
            step "back $round"
        done
        until_released for-ever
        rm "$offered"
        step "gone for ever"
        until_released
        """,
        NQN=NQN,
        forward=(port, 4420),
    )
    guest.wait_step("serving")
    target = SimpleNamespace(address=("127.0.0.1", port), port=port, nqn=NQN)
    with Attached(lab.programs["ironside"], target, "--via", "nbd", "-c", "1", "-k", "2") as attached:
        fio = write_slowly(attached, "16m")
        for turn in (1, 2):
            guest.release(f"gone{turn}")
            guest.wait_step(f"gone {turn}")
            guest.wait_until(lambda: state(attached) == "connecting", "the loss is not noticed")
            guest.release(f"back{turn}")
            guest.wait_until(lambda: state(attached) == "live", "it does not come back to the target")
        said, _ = fio.communicate(timeout=900)
        assert fio.returncode == 0, said

    with Attached(lab.programs["ironside"], target, "--via", "nbd", "-c", "1", "-k", "2", "-l", "5") as attached:
        fio = write_slowly(attached, "16m")
        time.sleep(1)
        guest.release("for-ever")
        said, _ = fio.communicate(timeout=900)
        assert fio.returncode != 0, "what is written to nobody succeeds"
        guest.wait_until(lambda: state(attached) not in ("live", "connecting"), "it never gave up")
    guest.release()
    lab.finish(guest, expected=EXPECTED)


def state(attached):
    (device,) = [device for device in attached.list() if device["SubsystemNQN"] == NQN]
    return device["State"]


def write_slowly(attached, size):
    options = "--rw=randwrite --bs=4k --iodepth=8 --rate=,1m --verify=crc32c --do_verify=1 --verify_fatal=1"
    volume = [f"--uri=nbd+unix:///?socket={attached.device}", f"--size={size}", "--verify_state_save=0"]
    command = ["fio", "--name=verify", "--ioengine=nbd", *options.split(), *volume]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
