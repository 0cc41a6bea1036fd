"""Many connections by one RoCE adapter (rxe): the memory that is locked for them stops growing; and two reactors by one adapter."""

EXPECTED = r"callbacks suppressed|nvme nvme\d+: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|rxe0: |Buffer I/O error"
CONTROLLERS = 10
# Each has an admin queue of 32 and two I/O queues of 256: so many take all receives that a reactor shares.
UNTIL_FLAT = 8
# A reactor's buffers and all receives, which the adapter and io_uring lock each for itself, and the zeroes that a null
# namespace reads as.
LOCKED_KIB = (2 * (112 + 18) + 2) << 10


def run(lab):
    guest = lab.start_guest(
        """
        roce
        pinned() { awk '/^VmPin/ { print $2 }' "/proc/$serving/status"; }
        ports=$(seq -f "--listen 10.9.0.1:%g" 4421 $((4420 + CONTROLLERS)))
        LISTEN=10.9.0.1 serve --provider ibv --reactors 1 --queue-depth 256 --namespace null:64MiB $ports
        pinned > /out/pinned
        for controller in $(seq $CONTROLLERS); do
            # By another port each time: a host does not connect twice to the same.
            must nvme connect -t rdma -a 10.9.0.1 -s $((4420 + controller)) -n "$NQN" -i 2 -Q 256
            step "$controller controllers, $(pinned) KiB locked"
            pinned >> /out/pinned
        done
        step "writes"
        nqn=$NQN
        must fio --name=all --filename="$(namespace 1)" --rw=randwrite --bs=4k --iodepth=256 --numjobs=2 --ioengine=libaio \\
            --direct=1 --number_ios=4000 --size=64m
        must nvme disconnect -n "$NQN"
        says "disconnected $CONTROLLERS controller"
        stop_serving

        LISTEN=10.9.0.1 serve --provider ibv --reactors 2 --namespace ram:64MiB
        connect 10.9.0.1 4420 "$NQN" 2
        [ "$(cat "/sys/class/nvme/$(controller)/queue_count")" = 3 ] || fail "not both I/O queues came"
        exercise "$device"
        step "both queues at once"
        must fio --name=verify --filename="$device" --rw=randrw --bs=16k --iodepth=16 --numjobs=2 --cpus_allowed=0,1 \\
            --cpus_allowed_policy=split --size=4m --offset_increment=8m --ioengine=libaio --direct=1 --verify=crc32c \\
            --do_verify=1 --verify_fatal=1
        disconnect "$NQN"
        stop_serving
        """,
        programs=("target",),
        cpus=2,
        NQN="nqn.2026-01.org.example:many",
        CONTROLLERS=CONTROLLERS,
    )
    lab.finish(guest, expected=EXPECTED)
    pinned = [int(line) for line in guest.said("pinned").split()]
    assert len(pinned) == 1 + CONTROLLERS, pinned
    assert pinned[1] < pinned[UNTIL_FLAT], f"it does not grow where it may: {pinned}"
    assert len(set(pinned[UNTIL_FLAT:])) == 1, f"it goes on growing: {pinned}"
    assert pinned[-1] < LOCKED_KIB, pinned
