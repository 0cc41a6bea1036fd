"""`ironside` and our target by one RoCE adapter, in software (rxe): fio verify, and memory which is registered in place."""


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
        for way in window pool dynamic; do
            step "memory in place, $way"
            must "$TOOLS" perf -a 10.9.0.1 -n "$NQN" --provider ibv --registration $way --in-place --verify --yes-overwrite \
                --reads 50 --block-size 64k --depth 4 --size 8m --seconds 3
        done
        stop_serving
        """,
        programs=("target", "ironside", "tools"),
        NQN="nqn.2026-01.org.example:roce-ours",
    )
    lab.finish(guest)
