"""`ironside` by an iWARP adapter, in software (siw), which has no memory windows: what it falls back to, and what it refuses."""

NQN = "nqn.2026-01.org.example:siw-adapter"


def run(lab):
    guest = lab.start_guest(
        """
        network
        modprobe -a loop fuse || fail "modules"
        kernel_target "$NQN" 10.0.2.15 4420
        step "windows are refused"
        must_fail "$IRONSIDE" connect -a 10.0.2.15 -n "$NQN" --provider ibv --registration window --via nbd
        says "no type-2 memory windows"
        step "the key of the pool instead"
        keep words "$IRONSIDE" doctor -a 10.0.2.15 --provider ibv
        attach_ours -a 10.0.2.15 -n "$NQN" --provider ibv
        verify_with_fio "$device" randrw 4k 4m 16
        detach_ours
        """,
        programs=("ironside",),
        NQN=NQN,
    )
    lab.finish(guest)
    said = guest.said("words")
    assert "siw0" in said and "no memory windows" in said, said
