"""`ironside` by a RoCE adapter, in software (rxe), against the kernel's target and ours in one guest: verify, cycles, loss."""

WAYS = ("window", "pool", "dynamic")
# The kernel's target is told of hosts that are killed.
EXPECTED = "nvmet|queue|ctrl"


def run(lab, cycles=20):
    guest = lab.start_guest(
        """
        roce
        modprobe -a loop fuse || fail "modules"
        export HOME=/tmp
        kernel_target "$NQN" 10.9.0.1 4420
        step "the doctor"
        keep doctor "$IRONSIDE" doctor -a 10.9.0.1 -o json
        keep words "$IRONSIDE" doctor -a 10.9.0.1
        grep -q "by an RDMA adapter" /tmp/said || fail "not by the adapter"

        attach() { keep attached.json "$IRONSIDE" connect "$@" -o json -c 1 --via fuse; device=$(sed -n 's/.*"DevicePath": "\\(.*\\)".*/\\1/p' /tmp/said); }
        detach() { must "$IRONSIDE" disconnect -d "$device"; }
        resources() { rdma resource show | tr -d '\\n'; }

        for way in $WAYS; do
            step "the kernel's target, $way"
            attach -a 10.9.0.1 -n "$NQN" --provider ibv --registration $way -i 2
            verify_with_fio "$device" randrw 4k 4m 16
            verify_with_fio "$device" randrw 512k 16m 4
            verify_with_fio "$device" write 1m 16m 2
            detach
        done

        step "$CYCLES cycles"
        attach -a 10.9.0.1 -n "$NQN" && detach
        before=$(resources)
        for cycle in $(seq $CYCLES); do
            attach -a 10.9.0.1 -n "$NQN"
            detach
        done
        wait_until '[ "$(resources)" = "$before" ]'

        step "our target"
        LISTEN=10.9.0.1:4421 serve --provider ibv --namespace ram:64MiB
        attach -a 10.9.0.1 -s 4421 -n "$NQN"
        verify_with_fio "$device" randrw 4k 4m 16
        verify_with_fio "$device" write 1m 16m 2
        step "our target is killed under load"
        write_slowly "$device" 2m & writer=$!
        wait_until 'has_written "$device" 20'
        kill -9 $serving
        wait_until '"$IRONSIDE" list | grep -q connecting'
        LISTEN=10.9.0.1:4421 serve --provider ibv --namespace ram:64MiB
        wait_until '! "$IRONSIDE" list | grep -q connecting'
        wait $writer || true
        detach
        stop_serving

        step "nobody there"
        must_fail "$IRONSIDE" connect -a 10.9.0.1 -s 4499 -n "$NQN" --provider ibv
        says "no RDMA listener"
        must_fail "$IRONSIDE" connect -a 127.0.0.1 -n "$NQN" --provider ibv
        says "provider iwarp"
        """,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:roce-initiator",
        WAYS=" ".join(WAYS),
        CYCLES=cycles,
    )
    lab.finish(guest, expected=EXPECTED)
    doctor = {finding["check"]: finding for finding in guest.json("doctor")["findings"]}
    assert doctor["adapter"]["verdict"] == "ok" and "rxe0" in doctor["adapter"]["found"], doctor
    assert doctor["gid"]["verdict"] == "ok" and doctor["registration"]["verdict"] == "ok", doctor
    assert doctor["ping"]["verdict"] == "ok", doctor
