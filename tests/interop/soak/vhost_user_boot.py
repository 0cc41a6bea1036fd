"""A machine boots from a volume of ours: the BIOS reads GRUB by vhost-user-blk, GRUB kernel and RAM disk, and its root lies there too."""

import shutil
import subprocess
from pathlib import Path

import kernel
from peer.initiator import Attached
from vhost_user import disk

PARTITION_AT = 1 << 20
VOLUME_MIB = 192
MEMORY_MIB = 512
GRUB = Path("/usr/lib/grub/i386-pc")
# What the BIOS's disk, and a partition of it with ext4, take.
GRUB_MODULES = "biosdisk part_msdos ext2 linux normal configfile echo serial terminal test".split()
# The machine ends with 2 n + 1 once 0x10 is written to the device for that.
GOOD_END = 0x21
WITHIN_S = 600


def run(lab):
    if not shutil.which("grub-mkimage") or not GRUB.exists():
        kernel.install(["grub-common", "grub-pc-bin"])
    volume = lab.place / "volume"
    make_volume(lab.place, kernel.prepare(), volume)
    with lab.target("--namespace", f"{volume},lba=512") as target:
        with Attached(lab.programs["ironside"], target, "--via", "vhost-user-blk") as attached:
            for boot in ("first", "second"):
                console = lab.place / f"console-{boot}"
                status = start(attached.device, console)
                said = console.read_text(errors="replace")
                assert status == GOOD_END, f"the {boot} boot ended with {status}:\n{said[-3000:]}"
                assert f"booted from the volume, boot {boot}" in said, said[-3000:]


def start(socket, console):
    machine = f"""
        qemu-system-x86_64 -accel tcg,thread=multi -machine q35,hpet=off -cpu max,la57=off -smp 1 -m {MEMORY_MIB}
        -nodefaults -no-user-config -no-reboot -display none -serial file:{console}
        -device isa-debug-exit,iobase=0x501,iosize=4
    """.split()
    command = [*machine, *disk(socket, MEMORY_MIB, queues=1)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=WITHIN_S).returncode


def make_volume(place, linux, volume):
    """A master boot record, GRUB behind it, and one partition with everything else."""
    root = place / "root"
    for part in ("boot", "bin", "dev", "proc", "sys"):
        (root / part).mkdir(parents=True)
    shutil.copy(linux / "vmlinuz", root / "boot")
    shutil.copy(shutil.which("busybox"), root / "bin/busybox")
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    (root / "boot/grub.cfg").write_text(GRUB_CONFIGURATION)
    make_ram_disk(place, linux, root / "boot/initrd")

    with open(volume, "wb") as file:
        file.truncate(VOLUME_MIB << 20)
    # Debian 12's GRUB does not know what its mkfs makes by default.
    features = "^metadata_csum_seed,^orphan_file"
    at = f"offset={PARTITION_AT}"
    size = f"{(VOLUME_MIB << 10) - (PARTITION_AT >> 10)}k"
    kernel.run("mkfs.ext4", "-q", "-F", "-O", features, "-E", at, "-d", str(root), str(volume), size)
    core = place / "core.img"
    early = place / "early.cfg"
    early.write_text("set root=(hd0,msdos1)\nconfigfile /boot/grub.cfg\n")
    kernel.run("grub-mkimage", "-O", "i386-pc", "-p", "/boot", "-c", str(early), "-o", str(core), *GRUB_MODULES)
    entry = bytes([0x80, 0, 0, 0, 0x83, 0, 0, 0])
    entry += (PARTITION_AT // 512).to_bytes(4, "little") + ((VOLUME_MIB << 11) - PARTITION_AT // 512).to_bytes(4, "little")
    record = bytearray((GRUB / "boot.img").read_bytes())
    # Where the partitions are GRUB has code for floppy disks.
    record[446:510] = entry.ljust(64, b"\0")
    with open(volume, "r+b") as file:
        file.write(record)
        file.write(core.read_bytes())
        assert file.tell() <= PARTITION_AT, "GRUB does not fit before the partition"


def make_ram_disk(place, linux, into):
    """Busybox, and the modules which find the volume."""
    root = place / "ram-disk"
    for part in ("bin", "dev", "volume", "modules"):
        (root / part).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), root / "bin/busybox")
    release = (linux / "complete").read_text().strip()
    first = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
    order = kernel.run("modprobe", "-d", str(linux / "modules"), "-S", release, "-a", "--show-depends", *first)
    files = list(dict.fromkeys(line.split()[1] for line in order.splitlines() if line.startswith("insmod ")))
    for file in files:
        shutil.copy(file, root / "modules")
    (root / "modules/order").write_text("".join(f"{Path(file).name}\n" for file in files))
    (root / "init").write_text(RAM_DISK_INIT)
    (root / "init").chmod(0o755)
    kernel.run("sh", "-c", f"cd {root} && find . | cpio -o -H newc --quiet | gzip -1 > {into}")


GRUB_CONFIGURATION = """
serial --unit=0 --speed=115200
terminal_output serial
echo GRUB has come from the volume
linux /boot/vmlinuz console=ttyS0 quiet loglevel=4 mitigations=off nokaslr panic=-1 tsc=reliable no_timer_check
initrd /boot/initrd
boot
"""

RAM_DISK_INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs devtmpfs /dev
for module in $($b cat /modules/order); do $b insmod "/modules/$module"; done
until [ -b /dev/vda1 ]; do $b sleep 0.1; done
$b mount -t ext4 /dev/vda1 /volume
$b mount --move /dev /volume/dev
exec $b switch_root /volume /init
"""

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
boot=first
if [ -e /been-here ]; then
    boot=second
    $b md5sum -c /been-here || exec $b reboot -f
fi
$b dd if=/dev/urandom of=/written bs=64k count=64
$b md5sum /written > /been-here
$b sync
$b mount -o remount,ro /
echo "booted from the volume, boot $boot" > /dev/ttyS0
$b usleep 200000
$b printf '\\020' | $b dd of=/dev/port bs=1 seek=$((0x501))
"""
