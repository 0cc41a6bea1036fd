"""Our target is killed under the load of `ironside`, by a RoCE adapter in software (rxe), and started again: nothing is lost."""


def run(lab):
    guest = lab.start_guest(
        """
        roce
        modprobe -a loop fuse || fail "modules"
        truncate -s 64M /tmp/volume
        LISTEN=10.9.0.1 serve --provider ibv --namespace /tmp/volume
        attach_ours -a 10.9.0.1 -n "$NQN" --provider ibv -k 5
        step "the target is killed under load"
        write_slowly "$device" 2m & writer=$!
        wait_until 'has_written "$device" 20'
        kill -9 $serving
        wait_until '"$IRONSIDE" list -o json | grep -q connecting'
        LISTEN=10.9.0.1 serve --provider ibv --namespace /tmp/volume
        wait_until '! "$IRONSIDE" list -o json | grep -q connecting'
        wait $writer || fail "what was written did not come back"
        detach_ours
        stop_serving
        """,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:roce-killed",
    )
    lab.finish(guest)
