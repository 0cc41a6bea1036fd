"""Connect and disconnect again and again: the target's memory, descriptors and threads stay as they were."""

# A debug build's allocator and its thread caches move by pages; a leak of one controller a cycle is far more.
SLACK_KIB = 1024


def run(lab, cycles=8):
    with lab.target("--namespace", "ram:64MiB") as target:
        idle = target.resources()
        guest = lab.start_guest(
            """
            network
            cycle() {
                must nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$NQN" -i 2
                nqn=$NQN
                must dd if="$(namespace 1)" of=/dev/null bs=64k count=4 iflag=direct
                disconnect "$NQN"
            }
            for warm in 1 2 3; do cycle; done
            step "warm"
            until_released measured
            for round in $(seq $CYCLES); do cycle; done
            step "$CYCLES cycles done"
            until_released
            """,
            cpus=2,
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
            CYCLES=cycles,
        )
        guest.wait_step("warm")
        before = settled(guest, target, idle)
        guest.release("measured")
        guest.wait_step("cycles done")
        after = settled(guest, target, idle)
        assert after <= before + SLACK_KIB, f"resident KiB: {before}, after {cycles} cycles {after}"
        guest.release()
        lab.finish(guest)


def settled(guest, target, idle):
    """The target's resident KiB, once it has let go of what the guest has left."""
    guest.wait_until(
        lambda: target.resources()[:2] == idle[:2], f"open files and threads were {idle[:2]}, are {target.resources()[:2]}"
    )
    return target.resources()[2]
