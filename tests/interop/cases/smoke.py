"""The kernel's NVMe/RDMA host over siw, without MPA checksums, over one I/O queue, on sectors of 512 bytes."""

# The flag of an MPA frame by which CRCs are used (RFC 5044, section 7.1.1).
CRC = 0x40


# So many queues, and the namespace of that number.
def run(lab, siw="siw", crc="off", queues=1, suite="backports"):
    with lab.target("--namespace", "ram:64MiB,lba=512", "--namespace", "ram:64MiB,lba=4096", "--crc", crc) as target:
        guest = lab.guest(
            """
            network
            step "discover"
            must nvme discover -t rdma -a "$ADDRESS" -s "$PORT"
            says "$NQN"
            connect "$ADDRESS" "$PORT" "$NQN" $QUEUES
            device=$(namespace $QUEUES)
            exercise "$device"
            exercise_the_rest "$device"
            disconnect "$NQN"
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
