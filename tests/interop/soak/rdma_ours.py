"""`ironside` and our target by one RoCE adapter, in software (rxe): fio verify."""


def run(lab):
    guest = lab.start_guest(
        """
        roce
        modprobe -a loop fuse || fail "modules"
        LISTEN=10.9.0.1 serve --provider ibv --namespace ram:64MiB
        attach_ours -a 10.9.0.1 -n "$NQN" --provider ibv
        step "verify"
        verify_with_fio "$device" randrw 4k 4m 16
        verify_with_fio "$device" write 1m 16m 2
        detach_ours
        stop_serving
        """,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:roce-ours",
    )
    lab.finish(guest)
