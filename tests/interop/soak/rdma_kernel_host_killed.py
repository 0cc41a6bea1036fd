"""Our target on a RoCE adapter in software (rxe) is killed under the load of the kernel's host, and started again."""

# What the kernel says of connections that went away and came back.
EXPECTED = r"callbacks suppressed|nvme nvme\d: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|rdma_rxe: |Buffer I/O error|cm_id|rxe0: "


def run(lab):
    guest = lab.start_guest(
        """
        roce
        LISTEN=10.9.0.1 serve --provider ibv --namespace /tmp/volume,size=64MiB
        connect 10.9.0.1 4420 "$NQN" 1 --reconnect-delay=1 --ctrl-loss-tmo=1800 --keep-alive-tmo=2
        write_slowly "$device" 4m &
        writer=$!
        wait_until 'has_written "$device" 100'
        step "the target is killed"
        kill -9 $serving
        wait_until '[ "$(state)" = connecting ]'
        LISTEN=10.9.0.1 serve --provider ibv --namespace /tmp/volume,size=64MiB
        wait_until '[ "$(state)" = live ]'
        wait $writer || fail "fio failed"
        verify_with_fio "$device" write 1m 8m 8
        disconnect "$NQN"
        stop_serving
        """,
        programs=("target",),
        NQN="nqn.2026-01.org.example:roce-killed",
    )
    lab.finish(guest, expected=EXPECTED)
