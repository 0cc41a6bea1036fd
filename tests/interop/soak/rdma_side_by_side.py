"""One target on a RoCE adapter in software (rxe) and in software RDMA at once: hosts of both kinds side by side, and which a host takes."""


def run(lab):
    guest = lab.start_guest(
        """
        roce
        modprobe -a loop fuse || fail "modules"
        # With its first connection a target registers its buffers, which takes an emulated machine longer than a host waits.
        warm() { wait_until '"$IRONSIDE" doctor -a 10.9.0.1 --provider ibv --count 1 > /out/words'; }
        LISTEN=10.9.0.1 serve --provider ibv --listen 10.9.0.1:4421,provider=iwarp --listen 10.9.0.1:4422,provider=iwarp \\
            --namespace ram:32MiB --namespace ram:32MiB
        warm

        step "every command that connects takes a provider"
        must "$IRONSIDE" discover -a 10.9.0.1 --provider ibv
        keep ours "$IRONSIDE" id-ctrl -a 10.9.0.1 -n "$NQN" --provider ibv -o json
        must "$IRONSIDE" id-ns -a 10.9.0.1 -n "$NQN" --namespace-id 1 --provider ibv
        must_fail "$IRONSIDE" discover -a 10.9.0.1 -s 4421 --provider ibv
        says "no RDMA listener"

        step "software where nobody answers by the adapter, and a line that says so"
        must "$IRONSIDE" discover -a 10.9.0.1 -s 4421
        says "by software RDMA, since by the RDMA adapter on the way nobody answers"
        must "$IRONSIDE" id-ctrl -a 10.9.0.1 -s 4421 -n "$NQN"
        says "by software RDMA, since"
        keep doctor "$IRONSIDE" doctor -a 10.9.0.1 -s 4421 -o json
        must_fail "$IRONSIDE" discover -a 10.9.0.1 -s 4499
        says "no RDMA listener"
        says "Connection refused"

        step "hosts of both kinds at one daemon, several I/O queues each"
        attach_ours -a 10.9.0.1 -n "$NQN" --nsid 1 --provider ibv -i 3
        by_adapter=$device
        grep -q '"Carrier": "adapter"' /out/attached.json || fail "not by the adapter"
        attach_ours -a 10.9.0.1 -s 4422 -n "$NQN" --nsid 2 -i 3
        in_software=$device
        grep -q '"software-instead"' /out/attached.json || fail "not in software"
        verify_with_fio "$by_adapter" randrw 4k 2m 16 & first=$!
        verify_with_fio "$in_software" randrw 4k 2m 16
        wait $first || fail "fio by the adapter"
        keep list "$IRONSIDE" list -o json
        for device in "$in_software" "$by_adapter"; do detach_ours; done
        stop_serving
        """,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:side-by-side",
    )
    lab.finish(guest)
    findings = {finding["check"]: finding for finding in guest.json("doctor")["findings"]}
    assert findings["reach"]["verdict"] == "warn", findings
    carriers = [device["Carrier"] for device in guest.json("list")["Devices"]]
    assert carriers[0] == "adapter" and "no RDMA listener" in carriers[1]["software-instead"], carriers
