"""`ironside` by a RoCE adapter, in software (rxe), against the kernel's target: lending by memory windows, refusals."""

# The kernel's target is told of hosts that are killed.
EXPECTED = "nvmet|queue|ctrl"


def run(lab, ways=("window",)):
    guest = lab.start_guest(
        """
        roce
        modprobe -a loop fuse || fail "modules"
        kernel_target "$NQN" 10.9.0.1 4420
        step "the doctor"
        keep doctor "$IRONSIDE" doctor -a 10.9.0.1 -o json
        keep words "$IRONSIDE" doctor -a 10.9.0.1
        grep -q "by an RDMA adapter" /tmp/said || fail "not by the adapter"

        for way in $WAYS; do
            step "the kernel's target, $way"
            attach_ours -a 10.9.0.1 -n "$NQN" --provider ibv --registration $way -i 2
            verify_with_fio "$device" randrw 4k 4m 16
            verify_with_fio "$device" randrw 512k 8m 4
            [ $way != window ] || verify_with_fio "$device" write 1m 16m 2
            detach_ours
        done

        step "nobody there"
        must_fail "$IRONSIDE" connect -a 10.9.0.1 -s 4499 -n "$NQN" --provider ibv
        says "no RDMA listener"
        must_fail "$IRONSIDE" connect -a 127.0.0.1 -n "$NQN" --provider ibv
        says "provider iwarp"
        """,
        programs=("ironside",),
        NQN="nqn.2026-01.org.example:roce-initiator",
        WAYS=" ".join(ways),
    )
    lab.finish(guest, expected=EXPECTED)
    doctor = {finding["check"]: finding for finding in guest.json("doctor")["findings"]}
    assert doctor["adapter"]["verdict"] == "ok" and "rxe0" in doctor["adapter"]["found"], doctor
    assert doctor["gid"]["verdict"] == "ok" and doctor["registration"]["verdict"] == "ok", doctor
    assert doctor["ping"]["verdict"] == "ok", doctor
