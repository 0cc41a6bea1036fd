"""QEMU has a volume of ours as a disk by vhost-user-blk: what the guest is told, fio, ext4, its process killed under load and recovered."""

import os
import signal
from pathlib import Path

from peer.initiator import Attached


def run(lab):
    with lab.target("--namespace", f"{lab.place}/volume,size=64MiB,lba=512") as target:
        with Attached(lab.programs["ironside"], target, "--via", "vhost-user-blk") as attached:
            guest = lab.start_guest(SCRIPT, cpus=1, devices=disk(attached.device))
            guest.wait_step("written to")
            kill(attached, guest)
            said = attached.run("recover", "vol" + attached.device.split("/vol")[1].split("/")[0])
            assert "vhost.sock" in said, said
            guest.release("recovered")
            lab.finish(guest)


def kill(attached, guest):
    (device,) = (device for device in attached.list() if device["DevicePath"] == attached.device)
    os.kill(device["Process"], signal.SIGKILL)
    process = Path(f"/proc/{device['Process']}")
    guest.wait_until(lambda: not process.exists(), "the killed process does not end")


def disk(socket, memory_mib=1024, queues=2):
    """QEMU's arguments for a disk at this socket, and for memory which is shared with whoever serves it."""
    return f"""
        -object memory-backend-memfd,id=memory,size={memory_mib}M,share=on -machine memory-backend=memory
        -chardev socket,id=disk,path={socket},reconnect=1
        -device vhost-user-blk-pci,chardev=disk,num-queues={queues},bootindex=1
    """.split()


SCRIPT = """
    modprobe virtio_blk || fail "modules"
    device=/dev/vda
    wait_until '[ -b $device ]'
    step "what the kernel was told"
    [ "$(blockdev --getsize64 $device)" = 67108864 ] || fail "size"
    is logical_block_size 512
    is physical_block_size 4096
    is write_cache "write back"
    [ "$(limit discard_max_bytes)" -gt 0 ] && [ "$(limit write_zeroes_max_bytes)" -gt 0 ] || fail "no discard"
    [ "$(cat /sys/block/vda/serial | wc -c)" = 20 ] || fail "serial $(cat /sys/block/vda/serial)"

    step "write, read and compare, discard, write zeroes, flush"
    write_read_compare $device "512 4096 65536 1048576"
    must dd if=/dev/urandom of=$device bs=1M count=2 seek=1 oflag=direct
    must blkdiscard -o 1048576 -l 1048576 $device
    must blkdiscard -z -o 2097152 -l 1048576 $device
    reads_as_zeros $device 512 256
    must dd if=/dev/urandom of=$device bs=4k count=4 oflag=direct,dsync
    step "without a cache, which needs no flush"
    echo "write through" > /sys/block/vda/cache_type
    must dd if=/dev/urandom of=$device bs=4k count=4 oflag=direct,dsync
    echo "write back" > /sys/block/vda/cache_type
    verify_with_fio $device randrw 4k 2m 32

    step "killed under fio, and recovered"
    write_slowly $device 2m & writing=$!
    before=$(awk '{print $5}' /sys/block/vda/stat)
    wait_until 'has_written $device $((before + 50))'
    step "written to"
    until_released recovered
    wait $writing || fail "an error came through"

    step "ext4"
    must mkfs.ext4 -q -F $device
    mkdir -p /tmp/mounted
    must mount -o discard $device /tmp/mounted
    must cp -r /usr/share/common-licenses /tmp/mounted/
    must fstrim /tmp/mounted
    must umount /tmp/mounted
    must fsck.ext4 -f -n $device
    must mount -o ro $device /tmp/mounted
    must diff -r /usr/share/common-licenses /tmp/mounted/common-licenses
    must umount /tmp/mounted
"""
