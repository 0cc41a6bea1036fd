"""`ironside` by the ublk driver: what the kernel is told, fio, ext4, killed under load and recovered, read-only, nothing left."""

ROUND_WITHIN_S = 30


# Without rounds, one kill has to do.
def run(lab, rounds=0):
    guest = lab.guest(
        """
        modprobe ublk_drv || fail "modules"
        export HOME=/tmp LISTEN=127.0.0.1:4420
        serve --namespace ram:64MiB,lba=512 --namespace ram:32MiB,lba=4096
        VIA=auto
        attach() { attach_ours -a 127.0.0.1 -n "$NQN" "$@"; }
        nothing_left() {
            [ -z "$(ls -d /dev/ublkb* /dev/ublkc* 2>/dev/null)" ] || fail "left: $(ls -d /dev/ublk*)"
            keep list "$IRONSIDE" list -o json
        }

        step "auto takes ublk, and says so"
        attach --nsid 1
        grep -q '"Via": "ublk"' /out/attached.json || fail "not by ublk"
        grep -q 'the best way here' /out/attached.json || fail "no reason"
        step "what the kernel was told"
        is logical_block_size 512
        is max_hw_sectors_kb 512
        is physical_block_size 4096
        [ "$(limit discard_max_bytes)" -gt 0 ] && [ "$(limit write_zeroes_max_bytes)" -gt 0 ] || fail "no discard"
        echo "write cache: $(limit write_cache), fua: $(limit fua)"
        [ "$(blockdev --getsize64 "$device")" = 67108864 ] || fail "size"

        step "write, read and compare, discard, write zeroes"
        write_read_compare "$device" "512 4096 65536 524288 1048576"
        must blkdiscard -o 1048576 -l 1048576 "$device"
        must dd if=/dev/urandom of="$device" bs=1M count=1 seek=2 oflag=direct
        must blkdiscard -z -o 2097152 -l 1048576 "$device"
        reads_as_zeros "$device" 512 256
        must dd if=/dev/urandom of="$device" bs=4k count=4 oflag=direct,dsync
        step "fio verifies"
        verify_with_fio "$device" randrw 4k 4m 64
        outlives_a_kill "$device" vol0

        if [ $ROUNDS -gt 0 ]; then
            step "killed under fio; connect takes it over"
            before=$(awk '{print $5}' "/sys/block/${device##*/}/stat")
            write_slowly "$device" 4m & writing=$!
            wait_until 'has_written "$device" $((before + 200))'
            kill_attachment
            attach --nsid 1
            grep -q 'taken over' /out/attached.json || fail "not taken over"
            wait $writing || fail "fio"
            must_fail "$IRONSIDE" recover vol0
            says "cannot be recovered"
        fi

        step "killed, and disconnected"
        kill_attachment
        must "$IRONSIDE" disconnect -d "$device"
        nothing_left

        step "read-only, blocks of 4096 bytes"
        VIA=ublk
        attach --nsid 2 --read-only
        is logical_block_size 4096
        [ "$(blockdev --getro "$device")" = 1 ] || fail "not read-only"
        must_fail dd if=/dev/zero of="$device" bs=4k count=1 oflag=direct
        must dd if="$device" of=/dev/null bs=1M iflag=direct
        detach_ours
        nothing_left

        step "rounds"
        for round in $(seq $ROUNDS); do attach --nsid 1; detach_ours; done
        nothing_left
        stop_serving
        """,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:ublk",
        ROUNDS=rounds,
        timeout_s=ROUND_WITHIN_S * (rounds + 60),
        expected="ublk|I/O error|Buffer I/O",
    )
    assert guest.json("list")["Devices"] == [], guest.said("list")
