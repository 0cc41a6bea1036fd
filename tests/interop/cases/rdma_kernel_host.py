"""Our target on a RoCE adapter, in software (rxe), and the kernel's host in the same guest: fio verify, cycles."""


def run(lab, cycles=3):
    guest = lab.start_guest(
        """
        roce
        LISTEN=10.9.0.1 serve --provider ibv --listen 127.0.0.1:4421,provider=iwarp --namespace ram:64MiB,lba=512
        step "discover"
        keep discover.json nvme discover -t rdma -a 10.9.0.1 -s 4420 -o json
        connect 10.9.0.1 4420 "$NQN" 1
        exercise "$device"
        for job in "randrw 512 128k 1" "randwrite 4k 2m 128"; do
            step "fio $job"
            verify_with_fio "$device" $job
        done
        disconnect "$NQN"

        cycle() {
            must nvme connect -t rdma -a 10.9.0.1 -s 4420 -n "$NQN" -i 1
            nqn=$NQN
            must dd if="$(namespace 1)" of=/dev/null bs=64k count=4 iflag=direct
            disconnect "$NQN"
        }
        resources() { rdma resource show rxe0 | tr ' ' '\\n' | grep -A1 -E '^(pd|cq|qp|cm_id|mr)$' | tr '\\n' ' '; }
        for warm in 1 2; do cycle; done
        before=$(resources)
        step "$CYCLES cycles, from $before"
        for round in $(seq $CYCLES); do cycle; done
        wait_until '[ "$(resources)" = "$before" ]'
        stop_serving
        """,
        programs=("target",),
        NQN="nqn.2026-01.org.example:roce",
        CYCLES=cycles,
    )
    lab.finish(guest)
    itself, record = guest.json("discover.json")["records"][:2]
    assert (itself["traddr"], record["traddr"], record["trsvcid"]) == ("10.9.0.1", "10.9.0.1", "4420"), record
    assert (record["trtype"], record["rdma_prtype"]) == ("rdma", "not specified"), record
