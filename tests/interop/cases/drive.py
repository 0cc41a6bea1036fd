"""The medium is an NVMe drive with a volatile cache, of 512 and of 4096 byte sectors, polled; the target runs beside it."""

MIB = 1 << 20
NQN = "nqn.2026-01.org.example:drive"
SIZE = 64 * MIB


def run(lab):
    images = {sector: lab.place / f"drive-{sector}" for sector in (512, 4096)}
    guest = lab.start_guest(
        """
        network
        must rdma link add siw1 type siw netdev lo
        must modprobe nvme poll_queues=1
        small=$(drive sector-512) large=$(drive sector-4096)
        serve --provider iwarp --namespace "$small" --namespace "$large"
        step "connect-all"
        nqn=$NQN
        must nvme connect-all -t rdma -a 10.0.2.15 -s 4420 -i 1
        for number in 1 2; do
            device=$(namespace $number)
            [ $number = 1 ] && drive=$small sector=512 || drive=$large sector=4096
            [ "$(blockdev --getss "$device")" = $sector ] || fail "$device has sectors of $(blockdev --getss "$device")"
            [ "$(cat "/sys/block/${drive##*/}/queue/io_poll")" = 1 ] || fail "$drive cannot be polled"
            step "fio on sectors of $sector bytes, without interrupts"
            interrupts=$(interrupts) transfers=$(transfers "$drive")
            verify_with_fio "$device" randrw $sector 256k 16
            verify_with_fio "$device" write 64k 4m 4
            interrupts=$(($(interrupts) - interrupts)) transfers=$(($(transfers "$drive") - transfers))
            echo "$transfers transfers, $interrupts interrupts"
            [ $transfers -ge 150 ] && [ $((interrupts * 10)) -lt $transfers ] || fail "the drive was not polled"
            interrupts=$(interrupts)
            must dd if="$drive" of=/dev/null bs=4096 count=100 iflag=direct
            [ $(($(interrupts) - interrupts)) -ge 100 ] || fail "a drive without polling makes no interrupts either"
            must cmp -n 4194304 "$device" "$drive"
            step "flush and FUA reach the drive, a plain write does not flush"
            must dd if=/dev/urandom of=/tmp/block bs=4096 count=1
            before=$(flushes "$drive")
            write="nvme write $device -s 0 -c $((4096 / sector - 1)) -z 4096 -d /tmp/block"
            asked "$drive" $write
            grep -qx WS /tmp/asked || grep -qx W /tmp/asked || fail "a plain write became $(cat /tmp/asked)"
            [ "$(flushes "$drive")" = "$before" ] || fail "a plain write flushed"
            asked "$drive" $write --force-unit-access
            grep -qx WFS /tmp/asked || fail "a FUA write became $(cat /tmp/asked)"
            must nvme flush "$device"
            [ "$(flushes "$drive")" -gt "$before" ] || fail "a flush did not reach the drive"
            step "write zeroes, deallocate"
            must blkdiscard -z -o 1048576 -l 1048576 "$device"
            reads_as_zeros "$device" 256 256
        done
        step "filled"
        for number in 1 2; do must dd if=/dev/urandom of="$(namespace $number)" bs=1M count=16 oflag=direct; done
        sync
        step "full"
        until_released discard
        for number in 1 2; do must blkdiscard "$(namespace $number)"; done
        disconnect "$NQN"
        stop_serving
        """,
        devices=[word for sector, image in images.items() for word in drive(image, sector)],
        programs=("target",),
        NQN=NQN,
    )
    guest.wait_step("full")
    full = {sector: image.stat().st_blocks * 512 for sector, image in images.items()}
    guest.release("discard")
    lab.finish(guest)
    for sector, image in images.items():
        left = image.stat().st_blocks * 512
        assert full[sector] >= 16 * MIB and left < MIB, f"{sector}: {full[sector]} bytes, after a discard {left}"


def drive(image, sector):
    """What QEMU needs for an NVMe drive on `image`, which is made."""
    with image.open("wb") as file:
        file.truncate(SIZE)
    name = f"drive{sector}"
    sectors = f"logical_block_size={sector},physical_block_size={sector}"
    return [
        *("-drive", f"if=none,id={name},file={image},format=raw,discard=unmap"),
        *("-device", f"nvme,serial=sector-{sector},drive={name},{sectors}"),
    ]
