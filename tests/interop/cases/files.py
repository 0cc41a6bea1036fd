"""ext4 on a file: a source tree is unpacked, unmounted, checked, found whole after a reconnect; fstrim gives space back."""

import hashlib
import tarfile

from peer.target import TOP

TREE = ("common", "target", "initiator", "docs")


def run(lab):
    volume = lab.place / "volume"
    with lab.target("--namespace", f"{volume},size=256MiB") as target:
        guest = lab.start_guest(
            """
            network
            mkdir /tmp/mounted
            connect "$ADDRESS" "$PORT" "$NQN" 1
            must mkfs.ext4 -q "$device"
            must mount "$device" /tmp/mounted
            step "unpack a source tree"
            until_released tree.ready
            must tar -xf /out/tree.tar -C /tmp/mounted
            must dd if=/dev/urandom of=/tmp/mounted/bulk bs=1M count=48
            step "written"
            sync
            must umount /tmp/mounted
            disconnect "$NQN"
            connect "$ADDRESS" "$PORT" "$NQN" 1
            step "check and compare"
            must fsck.ext4 -f -n "$device"
            must mount "$device" /tmp/mounted
            must sh -c "cd /tmp/mounted && sha256sum --quiet -c /out/tree.sums"
            step "filled"
            until_released trim
            must rm -r /tmp/mounted/bulk
            sync
            must fstrim -v /tmp/mounted
            cat /tmp/said
            must umount /tmp/mounted
            disconnect "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
        )
        pack_tree(guest.place)
        guest.wait_step("filled")
        filled = volume.stat().st_blocks * 512
        guest.release("trim")
        lab.finish(guest)
        given_back = filled - volume.stat().st_blocks * 512
        assert filled >= 48 << 20, f"48 MiB were written, the file has {filled} bytes"
        assert given_back >= 44 << 20, f"fstrim gave back {given_back} bytes of {filled}"


def pack_tree(place):
    """This project's own sources, some hundred files in directories, and the checksum of each."""
    files = sorted(file for part in TREE for file in (TOP / part).rglob("*") if file.is_file())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(TOP)}\n" for file in files)
    (place / "tree.sums").write_text(sums)
    with tarfile.open(place / "tree.tar", "w") as tree:
        for file in files:
            tree.add(file, file.relative_to(TOP))
    (place / "tree.ready").touch()
