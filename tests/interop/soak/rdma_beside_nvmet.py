"""Our target and the kernel's (nvmet-rdma) side by side on one RoCE adapter in software: the same host, jobs and media."""

from statistics import median

NQN = "nqn.2026-01.org.example:"
ROUNDS = 3
# Pattern, block size, depth.
JOBS = (("randread", "4k", 1), ("randread", "4k", 32), ("randwrite", "4k", 1), ("randwrite", "4k", 32), ("read", "128k", 8))


def run(lab):
    guest = lab.start_guest(
        """
        roce
        modprobe brd rd_nr=2 rd_size=65536 || fail "brd"
        kernel_target "${NQN}nvmet" 10.9.0.1 4421 /dev/ram0
        full=$NQN
        NQN="${full}ours"
        LISTEN=10.9.0.1 serve --provider ibv --reactors 1 --namespace /dev/ram1,lba=512
        connect 10.9.0.1 4420 "${full}ours" 1
        ours=$device
        connect 10.9.0.1 4421 "${full}nvmet" 1
        nvmet=$device
        for round in $(seq $ROUNDS); do
            step "round $round"
            for number in $(seq 0 $((JOBS - 1))); do
                for side in ours nvmet; do
                    eval "on=\\$$side"
                    must fio --filename="$on" /out/job-$number --output-format=json
                    cp /tmp/said /out/$side-$round-$number
                done
            done
        done
        disconnect "${full}nvmet"
        disconnect "${full}ours"
        stop_serving
        """,
        programs=("target",),
        NQN=NQN,
        ROUNDS=ROUNDS,
        JOBS=len(JOBS),
    )
    for number, (pattern, block, depth) in enumerate(JOBS):
        (guest.place / f"job-{number}").write_text(
            f"[job]\nrw={pattern}\nbs={block}\niodepth={depth}\nioengine=libaio\ndirect=1\n"
            "time_based\nruntime=4\nramp_time=1\nnorandommap\nrandrepeat=0\n"
        )
    lab.finish(guest)
    for number, (pattern, block, depth) in enumerate(JOBS):
        ours, theirs = (middle(guest, side, number, pattern) for side in ("ours", "nvmet"))
        print(
            f"   {pattern} {block} depth {depth}: ours {ours:.0f} IOPS, nvmet-rdma {theirs:.0f} IOPS, ratio {ours / theirs:.2f}",
            flush=True,
        )
        assert ours > 0 and theirs > 0


def middle(guest, side, number, pattern):
    """The median of a side's rounds, in IOPS."""
    kind = "write" if "write" in pattern else "read"
    return median(guest.json(f"{side}-{round}-{number}")["jobs"][0][kind]["iops"] for round in range(1, ROUNDS + 1))
