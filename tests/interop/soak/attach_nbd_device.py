"""`ironside` by the kernel's NBD client: what the kernel is told, fio, ext4, killed under load and recovered, a resize, nothing left."""

# What the kernel's client says of connections that end, and of requests which wait for 30 seconds.
EXPECTED = "nbd|I/O error|Buffer I/O"
ROUND_WITHIN_S = 30


def run(lab, rounds=2):
    guest = lab.guest(
        """
        modprobe nbd nbds_max=2 || fail "modules"
        export HOME=/tmp LISTEN=127.0.0.1:4420 VIA=nbd-device
        truncate -s 64M /tmp/volume
        serve --namespace ram:64MiB,lba=512 --namespace /tmp/volume,lba=4096
        attach() { attach_ours -a 127.0.0.1 -n "$NQN" "$@"; }
        size() { blockdev --getsize64 "$device"; }
        nothing_left() {
            [ "$(blockdev --getsize64 /dev/nbd0)" = 0 ] || fail "nbd0 has a size"
            keep list "$IRONSIDE" list -o json
        }

        step "what the kernel was told"
        attach --nsid 1
        is logical_block_size 512
        [ "$(limit discard_max_bytes)" -gt 0 ] || fail "no discard"
        [ "$(size)" = 67108864 ] || fail "size"
        step "write, read and compare, discard"
        write_read_compare "$device" "512 4096 65536 524288 1048576"
        must blkdiscard -o 1048576 -l 1048576 "$device"
        must blkdiscard -z -o 2097152 -l 1048576 "$device"
        reads_as_zeros "$device" 512 256
        must dd if=/dev/urandom of="$device" bs=4k count=4 oflag=direct,dsync
        step "fio verifies"
        verify_with_fio "$device" randrw 4k 4m 64
        verify_with_fio "$device" write 1m 8m 4
        outlives_a_kill "$device" "$device"

        step "killed, and disconnected"
        kill_attachment
        must "$IRONSIDE" disconnect -d "$device"
        nothing_left

        step "a resize, and blocks of 4096 bytes"
        attach --nsid 2
        is logical_block_size 4096
        [ "$(size)" = 67108864 ] || fail "size"
        truncate -s 96M /tmp/volume
        wait_until '[ "$(size)" = 100663296 ]'
        verify_with_fio "$device" randrw 4k 4m 16
        detach_ours
        step "read-only"
        attach --nsid 1 --read-only
        [ "$(blockdev --getro "$device")" = 1 ] || fail "not read-only"
        must_fail dd if=/dev/zero of="$device" bs=4k count=1 oflag=direct
        must dd if="$device" of=/dev/null bs=1M iflag=direct
        detach_ours
        step "rounds"
        for round in $(seq $ROUNDS); do attach --nsid 1; detach_ours; done
        nothing_left
        stop_serving
        """,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:nbd-device",
        ROUNDS=rounds,
        timeout_s=ROUND_WITHIN_S * (rounds + 60),
        expected=EXPECTED,
    )
    assert guest.json("list")["Devices"] == [], guest.said("list")
