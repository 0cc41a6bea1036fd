"""The kernel's NVMe/RDMA host over siw, without MPA checksums: one I/O queue, then two, on either sector size."""

# The flag of an MPA frame by which CRCs are used (RFC 5044, section 7.1.1).
CRC = 0x40


def run(lab, siw="siw", crc="off", queues="1 2", suite="backports"):
    with lab.target("--namespace", "ram:64MiB,lba=512", "--namespace", "ram:64MiB,lba=4096", "--crc", crc) as target:
        guest = lab.guest(
            """
            network
            step "discover"
            must nvme discover -t rdma -a "$ADDRESS" -s "$PORT"
            says "$NQN"
            for queues in $QUEUES; do
                connect "$ADDRESS" "$PORT" "$NQN" $queues
                device=$(namespace $queues)
                exercise "$device"
                exercise_the_rest "$device"
                disconnect "$NQN"
            done
            """,
            suite=suite,
            siw=siw,
            cpus=2,
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
            QUEUES=queues,
        )
        checked = {bool(flags & CRC) for flags in guest.mpa_replies()}
        assert checked == {siw == "siw-crc"}, f"CRCs were {checked}"
