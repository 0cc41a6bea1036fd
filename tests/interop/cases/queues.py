"""Four CPUs: connects with 1 to 12 queues of several kinds and depths, each as wide and as deep as agreed."""

# I/O queues and options of nvme connect → I/O queues, depth, what the kernel says of its queues. The target allows a depth of 128.
SHAPES = (
    ("1 -Q 16", 1, 16, "1/0/0"),
    ("4 -Q 32", 4, 32, "4/0/0"),
    ("9 -Q 1024", 4, 128, "4/0/0"),
    ("4 -W 4 -P 4 -Q 64", 12, 64, "4/4/4"),
)


def run(lab):
    shapes = "".join(f"shape {queues} {depth} {mapped} {options}\n" for options, queues, depth, mapped in SHAPES)
    with lab.target("--namespace", "ram:64MiB") as target:
        lab.guest(
            """
            network
            shape() {
                wanted=$1 depth=$2 mapped=$3
                shift 3
                kernel_log_from_here
                connect "$ADDRESS" "$PORT" "$NQN" "$@"
                there=/sys/class/nvme/$(controller)
                [ "$(cat $there/queue_count)" = $((wanted + 1)) ] || fail "$(cat $there/queue_count) queues"
                [ "$(cat $there/sqsize)" = $((depth - 1)) ] || fail "a depth of $(cat $there/sqsize)"
                kernel_says "mapped $mapped default/read/poll queues"
                must fio --name=verify --filename="$device" --rw=randrw --bs=4k --size=512k --offset_increment=512k \\
                    --numjobs=4 --cpus_allowed=0-3 --cpus_allowed_policy=split --iodepth=64 --ioengine=io_uring \\
                    --direct=1 --verify=crc32c --verify_fatal=1 $polled
                disconnect "$NQN"
            }
            """
            + shapes.replace("shape 12", "polled=--hipri shape 12")
            + """
            dmesg > /tmp/said
            says 'queue_size 1024 > ctrl .* 128, clamping down'
            """,
            cpus=4,
            # Being asked for less than it wished for is what the kernel warns about.
            expected="clamping down",
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
        )
