"""What well-known NBD clients do with an attached volume."""

import contextlib
import filecmp
import json
import os
import subprocess
import time

from peer.initiator import Attached, run
from peer.target import Target, free_port

SIZE = 64 << 20


class Bench:
    def __init__(self, place, serving, attaching):
        self.place, self.serving, self.attaching = place, serving, attaching
        self.volume = place / "volume"

    def target(self, block=512, **options):
        namespace = f"{self.volume},size={SIZE},lba={block}"
        return Target(self.serving, self.place / "target.log", "--namespace", namespace, **options)

    def attach(self, target, *arguments):
        return Attached(self.attaching, target, "--via", "nbd", *arguments)

    @contextlib.contextmanager
    def attached(self, block=512, *arguments):
        """The URI of an attached volume."""
        with self.target(block) as target, self.attach(target, *arguments) as attached:
            yield uri(attached)

    def random_file(self, name, length=SIZE):
        path = self.place / name
        with open(path, "wb") as file:
            for _ in range(0, length, 1 << 20):
                file.write(os.urandom(1 << 20))
        return path


def uri(attached):
    return f"nbd+unix:///?socket={attached.device}"


def test_nbdinfo(bench):
    """nbdinfo: size, abilities, block sizes and map, on either sector size"""
    for block in (512, 4096):
        with bench.attached(block) as volume:
            (export,) = json.loads(run("nbdinfo", "--json", volume))["exports"]
            assert export["export-size"] == SIZE
            for ability in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
                assert export[ability] is True, ability
            assert export["is_read_only"] is False
            assert export["block_size_minimum"] in (1, block)
            assert sum(part["length"] for part in json.loads(run("nbdinfo", "--json", "--map", volume))) == SIZE


def test_nbdcopy(bench):
    """nbdcopy: in and out again over four connections"""
    source, back = bench.random_file("source"), bench.place / "back"
    with bench.attached() as volume:
        run("nbdcopy", "--connections=4", source, volume)
        run("nbdcopy", "--connections=4", volume, back)
    assert filecmp.cmp(source, back, shallow=False)
    assert filecmp.cmp(source, bench.volume, shallow=False), "the file behind the target differs"


def test_qemu_img(bench):
    """qemu-img: convert, compare, map and info"""
    source = bench.random_file("source")
    with bench.attached(4096) as volume:
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, volume)
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, volume)
        run("qemu-img", "map", "-f", "raw", "--output=json", volume)
        assert json.loads(run("qemu-img", "info", "-f", "raw", "--output=json", volume))["virtual-size"] == SIZE


def test_qemu_io(bench):
    """qemu-io: patterns, unaligned requests, FUA, zeroes, discard, flush, past the end"""
    with bench.attached() as volume:
        commands = (
            "write -P 0x5a 0 1M",
            "read -P 0x5a 0 1M",
            "write -f -P 0xa5 4096 512",
            "read -P 0xa5 4096 512",
            "read -P 0x5a 4608 64k",
            "write -P 0x11 8M 5M",
            "read -P 0x11 8M 5M",
            "write -z 8M 1M",
            "read -P 0 8M 1M",
            "write -z -u 9M 1M",
            "read -P 0 9M 1M",
            "write -P 0x77 1234567 1",
            "read -P 0x77 1234567 1",
            "discard 2M 1M",
            "flush",
            "aio_write -P 0x33 16M 4M",
            "aio_read 20M 4M",
            "aio_flush",
            "read -P 0x33 16M 4M",
        )
        arguments = [word for command in commands for word in ("-c", command)]
        said = run("qemu-io", "-f", "raw", *arguments, volume)
        assert "failed" not in said and "error" not in said, said


def test_nbdkit_checkwrite(bench):
    """nbdkit: its checkwrite filter sees every byte as it was written"""
    source = bench.random_file("source")
    with bench.target() as target, bench.attach(target) as attached:
        run("nbdcopy", source, uri(attached))
        command = ["nbdkit", "-U", "-", "--filter=checkwrite", "nbd", f"socket={attached.device}"]
        run(*command, "--run", f"nbdcopy {source} $uri")


def test_fio(bench):
    """fio: random reads and writes through its nbd engine, checked by crc32c"""
    with bench.attached() as volume:
        run(*fio(volume, "randrw", "4k", "16m", 32))
        run(*fio(volume, "write", "256k", "32m", 8))


def fio(volume, rw, bs, size, depth, *more):
    verify = ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"]
    return ["fio", "--name=verify", "--ioengine=nbd", f"--uri={volume}", f"--rw={rw}", f"--bs={bs}", f"--size={size}",
            f"--iodepth={depth}", *verify, *more]  # fmt: skip


def test_target_restarts_under_load(bench):
    """The target is killed and started again while fio writes: no request fails, no acknowledged write is lost"""
    port = free_port()
    with bench.target(port=port) as target:
        with bench.attach(target, "-c", "1") as attached:
            load = subprocess.Popen(
                fio(uri(attached), "randwrite", "4k", "16m", 16, "--rate=3m"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            time.sleep(2)
            target.crash()
            time.sleep(1)
            with bench.target(port=port):
                said, _ = load.communicate(timeout=90)
                assert load.returncode == 0, said


def test_disconnect_from_a_dead_target(bench):
    """A volume whose target is gone for good can still be disconnected"""
    with bench.target() as target:
        with bench.attach(target):
            target.crash()
