"""The target is killed and started again while the kernel writes: its host reconnects and no written block is lost."""

from peer.target import free_port

# What the kernel's host says of a connection that went away and came back.
EXPECTED = r"callbacks suppressed|nvme nvme\d: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|cm_id|siw"


def run(lab, kills=2):
    port = free_port()
    namespace = f"{lab.place}/volume,size=64MiB"
    with lab.target("--namespace", namespace, port=port) as target:
        guest = lab.start_guest(
            """
            network
            connect "$ADDRESS" "$PORT" "$NQN" 1 --reconnect-delay=1 --ctrl-loss-tmo=1800
            step "fio writes"
            write_slowly "$device" $((KILLS / 2 + 3))m &
            writer=$!
            for kill in $(seq $KILLS); do
                wait_until 'has_written "$device" $((kill * 100))'
                step "kill $kill"
                wait_until '[ "$(state)" = connecting ]'
                step "lost $kill"
                wait_until '[ "$(state)" = live ]'
            done
            wait $writer || fail "fio failed"
            disconnect "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=port,
            NQN=target.nqn,
            KILLS=kills,
        )
        guest.wait_step("kill 1")
        target.crash()
    for kill in range(1, kills):
        guest.wait_step(f"lost {kill}")
        with lab.target("--namespace", namespace, port=port) as target:
            guest.wait_step(f"kill {kill + 1}")
            target.crash()
    guest.wait_step(f"lost {kills}")
    with lab.target("--namespace", namespace, port=port):
        lab.finish(guest, expected=EXPECTED)
