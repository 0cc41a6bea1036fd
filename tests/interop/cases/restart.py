"""The target is killed and started again while the kernel writes: its host reconnects and no written block is lost."""

from peer.target import free_port

# What the kernel's host says of a connection that went away and came back.
EXPECTED = r"nvme nvme\d: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|cm_id|siw"


def run(lab):
    port = free_port()
    namespace = f"{lab.place}/volume,size=64MiB"
    with lab.target("--namespace", namespace, port=port) as target:
        guest = lab.start_guest(
            """
            network
            connect "$ADDRESS" "$PORT" "$NQN" 1 --reconnect-delay=1 --ctrl-loss-tmo=60
            step "fio writes"
            must fio --name=verify --filename="$device" --rw=randwrite --bs=4k --size=8m --rate=512k --ioengine=libaio \\
                --iodepth=8 --direct=1 --verify=crc32c --do_verify=1 --verify_fatal=1
            disconnect "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=port,
            NQN=target.nqn,
        )
        guest.wait_step("fio writes")
        guest.wait(4)
        target.crash()
    guest.wait(2)
    with lab.target("--namespace", namespace, port=port):
        lab.finish(guest, expected=EXPECTED)
