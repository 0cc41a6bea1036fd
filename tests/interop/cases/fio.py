"""fio verifies 512 bytes to 1 MiB, one by one to 128 at once, in order, at random and mixed; memory and a file."""

# Pattern, block size, depth, bytes. Each is written and read back, or for randrw done in turns, with crc32c.
JOBS = (
    ("write", "512", 1, "128k"),
    ("randwrite", "512", 128, "256k"),
    ("write", "4k", 32, "2m"),
    ("randrw", "4k", 128, "4m"),
    ("randwrite", "16k", 16, "4m"),
    ("randrw", "64k", 8, "4m"),
    ("write", "128k", 4, "8m"),
    ("randrw", "512k", 8, "8m"),
    ("write", "1m", 1, "8m"),
    ("randwrite", "1m", 128, "16m"),
    ("randrw", "512-1m", 32, "16m"),
)

GLOBAL = """[global]
ioengine=libaio
direct=1
verify=crc32c
verify_fatal=1
do_verify=1
stonewall
"""


def run(lab, siw="siw", crc="off", jobs=JOBS):
    namespaces = ("--namespace", "ram:64MiB,lba=512", "--namespace", f"{lab.place}/volume,size=64MiB,lba=512")
    with lab.target(*namespaces, "--crc", crc) as target:
        guest = lab.start_guest(
            """
            network
            connect "$ADDRESS" "$PORT" "$NQN" 1
            until_released jobs-2
            for number in 1 2; do
                step "fio on namespace $number"
                must env DEVICE="$(namespace $number)" fio /out/jobs-$number
            done
            disconnect "$NQN"
            """,
            siw=siw,
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
        )
        # The two media share the jobs; the soak gives all to both.
        for number in (1, 2):
            (guest.place / f"jobs-{number}").write_text(GLOBAL + "".join(map(section, jobs[number - 1 :: 2])))
        lab.finish(guest)


def section(job):
    pattern, block, depth, size = job
    sizes = f"bsrange={block}" if "-" in block else f"bs={block}"
    return f"[{pattern}-{block}-{depth}]\nfilename=${{DEVICE}}\nrw={pattern}\n{sizes}\niodepth={depth}\nsize={size}\n"
