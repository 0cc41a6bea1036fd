"""The kernel resets the controller again and again while fio writes: every block is as written, no error reaches fio."""

from restart import EXPECTED


def run(lab):
    with lab.target("--namespace", f"{lab.place}/volume,size=64MiB") as target:
        lab.guest(
            """
            network
            connect "$ADDRESS" "$PORT" "$NQN" 1
            step "fio writes"
            write_slowly "$device" 4m &
            writer=$!
            wait_until 'has_written "$device" 64'
            resets=0
            while kill -0 $writer 2>/dev/null; do
                must nvme reset /dev/$(controller)
                [ "$(state)" = live ] || fail "after a reset the controller is $(state)"
                resets=$((resets + 1))
            done
            wait $writer || fail "fio failed"
            step "$resets resets"
            [ $resets -gt 0 ] || fail "fio was done before the first reset"
            disconnect "$NQN"
            """,
            expected=EXPECTED,
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
        )
