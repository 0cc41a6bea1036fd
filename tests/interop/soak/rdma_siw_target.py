"""Our target by an iWARP adapter, in software (siw), whose RDMA Reads need memory that is lent, and the kernel's host in the same guest."""

# What the kernel says of connections that went away and came back.
EXPECTED = r"callbacks suppressed|nvme nvme\d: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|Buffer I/O error|siw"


def run(lab):
    guest = lab.start_guest(
        """
        network
        truncate -s 64M /tmp/volume
        serve --provider ibv --namespace /tmp/volume
        connect 10.0.2.15 4420 "$NQN" 1
        exercise "$device"
        # What is larger than a capsule takes is fetched by RDMA Reads.
        for job in "randwrite 16k 4m 128" "randrw 8k 2m 4"; do
            step "fio $job"
            verify_with_fio "$device" $job
        done
        disconnect "$NQN"

        resources() { rdma resource show siw0 | tr ' ' '\\n' | grep -A1 -E '^(pd|cq|qp|cm_id|mr)$' | tr '\\n' ' '; }
        cycle() {
            must nvme connect -t rdma -a 10.0.2.15 -s 4420 -n "$NQN" -i 1
            nqn=$NQN
            must dd if=/dev/urandom of="$(namespace 1)" bs=64k count=4 oflag=direct
            disconnect "$NQN"
        }
        cycle
        before=$(resources)
        step "3 cycles, from $before"
        for round in 1 2 3; do cycle; done
        wait_until '[ "$(resources)" = "$before" ]'

        connect 10.0.2.15 4420 "$NQN" 1 --reconnect-delay=1 --ctrl-loss-tmo=1800 --keep-alive-tmo=2
        fio --name=verify --filename="$device" --rw=randwrite --bs=16k --size=4m --rate=,512k --ioengine=libaio --iodepth=8 \\
            --direct=1 --verify=crc32c --do_verify=1 --verify_fatal=1 > /tmp/fio-said 2>&1 &
        writer=$!
        wait_until 'has_written "$device" 50'
        step "the target is killed"
        kill -9 $serving
        wait_until '[ "$(state)" = connecting ]'
        serve --provider ibv --namespace /tmp/volume
        wait_until '[ "$(state)" = live ]'
        wait $writer || { cat /tmp/fio-said; fail "fio failed"; }
        disconnect "$NQN"
        stop_serving
        """,
        programs=("target",),
        NQN="nqn.2026-01.org.example:siw-target",
    )
    lab.finish(guest, expected=EXPECTED)
