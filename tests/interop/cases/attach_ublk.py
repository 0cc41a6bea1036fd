"""`ironside` by the ublk driver: what the kernel is told, fio, ext4, killed under load and recovered, read-only, nothing left."""


# Without rounds, one kill has to do.
def run(lab, rounds=0):
    guest = lab.guest(
        """
        modprobe ublk_drv || fail "modules"
        export HOME=/tmp LISTEN=127.0.0.1:4420
        serve --namespace ram:64MiB,lba=512 --namespace ram:32MiB,lba=4096
        VIA=auto
        attach() { attach_ours -a 127.0.0.1 -n "$NQN" "$@"; }
        limit() { cat "/sys/block/${device##*/}/queue/$1"; }
        is() { [ "$(limit $1)" = "$2" ] || fail "$1 is $(limit $1), not $2"; }
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
        step "ext4"
        must mkfs.ext4 -q -F "$device"
        mkdir -p /tmp/mounted
        must mount "$device" /tmp/mounted
        must cp -r /usr/share/common-licenses /tmp/mounted/
        must_fail "$IRONSIDE" disconnect -d "$device"
        says "mounted at /tmp/mounted"

        step "killed while it is mounted and written to: requests wait, nobody sees an error"
        dd if=/dev/urandom of=/tmp/mounted/filled bs=64k count=256 oflag=direct 2> /tmp/dd-said & writing=$!
        wait_until '[ -s /tmp/mounted/filled ]'
        kill_attachment
        keep orphaned "$IRONSIDE" list
        says "orphaned"
        must "$IRONSIDE" recover vol0
        wait $writing || { cat /tmp/dd-said; fail "an error came through"; }
        must umount /tmp/mounted
        must fsck.ext4 -f -n "$device"
        must mount -o ro "$device" /tmp/mounted
        must diff -r /usr/share/common-licenses /tmp/mounted/common-licenses
        must umount /tmp/mounted

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
        expected="ublk|I/O error|Buffer I/O",
    )
    assert guest.json("list")["Devices"] == [], guest.said("list")
