"""One namespace by two targets: the kernel follows their ANA states under load, outlives the death of one, takes it back."""

import signal

from peer.target import NQN, free_port

STATES = {"optimized", "non-optimized", "inaccessible", "persistent-loss", "change"}
# What the kernel's host says of a connection that went away and came back, and of commands it sends by the other.
EXPECTED = r"callbacks suppressed|nvme nvme\d: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|cm_id|siw"


def run(lab):
    ports = free_port(), free_port()
    volume = lab.place / "volume"
    with volume.open("wb") as file:
        file.truncate(64 << 20)
    configs = [lab.place / f"{name}.toml" for name in ("a", "b")]

    def serve(which, state):
        assert state in STATES
        configs[which].write_text(
            f'listen = ["127.0.0.1:{ports[which]}"]\nstate-dir = "{lab.place}/state-{which}"\n'
            f'[[subsystem]]\nnqn = "{NQN}"\nserial = "SHARED"\nallow-any-host = true\n'
            f"cntlid-min = {1 + 1000 * which}\ncntlid-max = {1000 + 1000 * which}\n"
            f'ana = [{{ state = "{state}" }}]\n'
            f'[[subsystem.namespace]]\npath = "{volume}"\nlba = 512\nuuid = "7be1f3a4-1111-4c3b-9a55-0123456789ab"\n'
        )

    def turn(target, which, state):
        serve(which, state)
        before = target.log.read_text().count("reloaded:")
        target.process.send_signal(signal.SIGHUP)
        guest.wait_until(lambda: target.log.read_text().count("reloaded:") > before, f"no reload: {target.said()}")

    def target(which):
        return lab.target(config=configs[which], port=ports[which])

    serve(0, "optimized")
    serve(1, "non-optimized")
    with target(1) as b:
        with target(0) as a:
            guest = lab.start_guest(
                """
                network
                connect "$ADDRESS" "$PORT_A" "$NQN" 1 --reconnect-delay=1 --ctrl-loss-tmo=1800
                must nvme connect -t rdma -a "$ADDRESS" -s "$PORT_B" -n "$NQN" -i 1 --reconnect-delay=1 --ctrl-loss-tmo=1800
                # The state of the group by both controllers, and of the controllers.
                access() { echo $(cat /sys/class/nvme/nvme0/nvme*c0n1/ana_state /sys/class/nvme/nvme1/nvme*c1n1/ana_state); }
                lives() { echo $(cat /sys/class/nvme/nvme0/state /sys/class/nvme/nvme1/state); }
                written() { awk '{print $5}' "/sys/block/${device##*/}/stat"; }
                more_written() { [ "$(written)" -ge $((so_far + 64)) ]; }
                # Work goes on, by whichever way is left.
                goes_on() { so_far=$(written); wait_until more_written; }
                wait_until '[ "$(access)" = "optimized non-optimized" ]'
                [ $(blocks | wc -l) = 1 ] || fail "two ways, and $(blocks | wc -l) devices"
                keep subsystems nvme list-subsys -o json
                keep ana_log_a nvme ana-log /dev/nvme0 -o json
                keep ana_log_b nvme ana-log /dev/nvme1 -o json
                write_slowly "$device" 24m &
                writer=$!
                goes_on
                step "both ways"
                wait_until '[ "$(access)" = "inaccessible optimized" ]'
                goes_on
                step "the second way"
                wait_until '[ "$(access)" = "non-optimized persistent-loss" ]'
                goes_on
                step "the first way"
                wait_until '[ "$(access)" = "optimized non-optimized" ]'
                goes_on
                step "kill"
                wait_until '[ "$(lives)" = "connecting live" ]'
                goes_on
                step "one is dead"
                wait_until '[ "$(lives)" = "live live" ] && [ "$(access)" = "optimized non-optimized" ]'
                goes_on
                step "it is back"
                wait $writer || fail "fio failed"
                verify_with_fio "$device" randrw 4k 4m 16
                must nvme disconnect -n "$NQN"
                says "disconnected 2 controller"
                """,
                ADDRESS=lab.HOST,
                PORT_A=ports[0],
                PORT_B=ports[1],
                NQN=NQN,
            )
            guest.wait_step("both ways")
            turn(b, 1, "optimized")
            turn(a, 0, "inaccessible")
            guest.wait_step("the second way")
            turn(a, 0, "non-optimized")
            turn(b, 1, "persistent-loss")
            guest.wait_step("the first way")
            turn(b, 1, "non-optimized")
            turn(a, 0, "optimized")
            guest.wait_step("kill")
            a.crash()
        guest.wait_step("one is dead")
        with target(0):
            lab.finish(guest, expected=EXPECTED)
    (paths,) = [
        subsystem["Paths"]
        for host in guest.json("subsystems")
        for subsystem in host["Subsystems"]
        if subsystem["NQN"] == NQN
    ]
    assert [path["State"] for path in paths] == ["live", "live"], paths
    for name, state in [("ana_log_a", "optimized"), ("ana_log_b", "non-optimized")]:
        groups = [value for key, value in guest.json(name).items() if key.strip().upper() == "ANA DESC LIST"]
        assert [(group["grpid"], group["state"]) for group in groups[0]] == [(1, state)], groups
