"""`ironside` by a RoCE adapter, in software (rxe): 100 connects and disconnects leave the kernel's RDMA objects as they were."""

# The kernel's target tells of hosts that come and go.
EXPECTED = "nvmet|queue|ctrl"


def run(lab, cycles=100):
    guest = lab.start_guest(
        """
        roce
        kernel_target "$NQN" 10.9.0.1 4420
        resources() { rdma resource show | tr -d '\\n'; }
        step "$CYCLES cycles"
        export HOME=/tmp
        # What this machine shares with the guest is read anew at each start, which takes longer than all the rest.
        must cp "$IRONSIDE" /tmp/ironside
        IRONSIDE=/tmp/ironside
        cycle() {
            must "$IRONSIDE" connect -a 10.9.0.1 -n "$NQN" --via nbd
            must "$IRONSIDE" disconnect -n "$NQN"
        }
        cycle
        wait_until 'rdma resource show qp | grep -c "" | grep -q "^[01]$"'
        before=$(resources)
        for number in $(seq $CYCLES); do step "cycle $number"; cycle; done
        wait_until '[ "$(resources)" = "$before" ]'
        """,
        programs=("ironside",),
        NQN="nqn.2026-01.org.example:roce-cycles",
        CYCLES=cycles,
    )
    lab.finish(guest, expected=EXPECTED)
