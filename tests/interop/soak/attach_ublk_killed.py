"""A mounted ublk device whose process is killed at random times under writes, 100 rounds: no error, and fsck finds nothing.

Emulated and with a core for itself a round takes about 15 s, and all of them half an hour. IRONSIDE_ROUNDS is another number of rounds.
"""

import os

ROUND_WITHIN_S = 120


def run(lab, rounds=int(os.environ.get("IRONSIDE_ROUNDS", 100))):
    guest = lab.guest(
        """
        modprobe ublk_drv || fail "modules"
        export HOME=/tmp LISTEN=127.0.0.1:4420 VIA=ublk
        serve --namespace ram:64MiB,lba=512
        attach_ours -a 127.0.0.1 -n "$NQN"
        must mkfs.ext4 -q -F "$device"
        mkdir -p /tmp/mounted
        for round in $(seq $ROUNDS); do
            step "round $round"
            must mount "$device" /tmp/mounted
            dd if=/dev/urandom of=/tmp/written bs=64k count=96 2> /dev/null
            (cp /tmp/written /tmp/mounted/ && sync -f /tmp/mounted) 2> /tmp/cp-said & writing=$!
            busybox usleep $(($(od -An -N2 -tu2 /dev/urandom) * 10))
            shoot_attachment
            # At once: the process may still be dying.
            must "$IRONSIDE" recover vol0
            wait $writing || { cat /tmp/cp-said; fail "an error came through"; }
            must umount /tmp/mounted
            must fsck.ext4 -f -n "$device"
            must mount -o ro "$device" /tmp/mounted
            must cmp /tmp/written /tmp/mounted/written
            must umount /tmp/mounted
        done
        detach_ours
        [ -z "$(ls -d /dev/ublkb* /dev/ublkc* 2>/dev/null)" ] || fail "left: $(ls -d /dev/ublk*)"
        stop_serving
        """,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:ublk-killed",
        ROUNDS=rounds,
        timeout_s=ROUND_WITHIN_S * (rounds + 10),
    )
    assert f"round {rounds}" in guest.said(), "a round is missing"
