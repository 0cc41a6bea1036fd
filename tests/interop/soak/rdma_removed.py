"""The RoCE adapter (rxe) that our target serves by is taken away under load and given back: the target listens there again by itself."""

EXPECTED = (
    r"callbacks suppressed|nvme nvme\d: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|rdma_rxe: |Buffer I/O error|cm_id|rxe0: "
)


def run(lab):
    guest = lab.start_guest(
        """
        roce
        LISTEN=10.9.0.1 serve --provider ibv --listen 127.0.0.1:4421,provider=iwarp --namespace /tmp/volume,size=64MiB
        connect 10.9.0.1 4420 "$NQN" 1
        write_read_compare "$device" 65536
        for round in 1 2; do
            written=$(awk '{print $5}' "/sys/block/${device##*/}/stat")
            fio --name=load --filename="$device" --rw=randrw --bs=4k --iodepth=8 --ioengine=libaio --direct=1 --time_based \\
                --runtime=600 --offset=1m --size=4m > /dev/null 2>&1 & load=$!
            wait_until 'has_written "$device" $((written + 100))'
            step "the adapter is taken away"
            must rdma link delete rxe0
            # The host's adapter is the same one, so its controller ends too.
            wait_until '[ -z "$(controller)" ]'
            wait $load && fail "fio did not notice"
            wait_until '[ "$(grep -c "taken away" /out/target.log)" -ge $((2 * round)) ]'
            kill -0 $serving || { cat /out/target.log; fail "the target has ended"; }
            must_fail nvme discover -t rdma -a 10.9.0.1 -s 4420
            step "and given back"
            must rdma link add rxe0 type rxe netdev roce
            wait_until '[ "$(grep -c "adapter is back" /out/target.log)" = $round ]'
            connect 10.9.0.1 4420 "$NQN" 1
            must dd if="$device" of=/tmp/read bs=65536 count=1 skip=3 iflag=direct
            must cmp /tmp/written /tmp/read
            verify_with_fio "$device" randrw 4k 2m 16
            must dd if=/tmp/written of="$device" bs=65536 count=1 seek=3 oflag=direct
        done
        disconnect "$NQN"
        stop_serving
        """,
        programs=("target",),
        NQN="nqn.2026-01.org.example:removed",
    )
    lab.finish(guest, expected=EXPECTED)
