"""Our target on a RoCE adapter, in software (rxe), and the kernel's host beside it in one guest: fio verify, cycles, loss."""


def run(lab, cycles=20):
    guest = lab.start_guest(
        """
        roce
        LISTEN=10.9.0.1 serve --provider ibv --namespace ram:64MiB
        step "discover"
        keep discover.json nvme discover -t rdma -a 10.9.0.1 -s 4420 -o json
        connect 10.9.0.1 4420 "$NQN" 1
        exercise "$device"
        disconnect "$NQN"
        stop_serving
        """,
        programs=("target",),
        NQN="nqn.2026-01.org.example:roce",
    )
    lab.finish(guest)
