"""The PyPI package `nvmeof`, unchanged, as a host of our daemon."""

import os

import ibverbs
import nvmeof
from nvmeof import protocol


def connect(target, **options):
    return nvmeof.Controller.connect("127.0.0.1", target.nqn, port=target.port, timeout=10, **options)


def round_trip(controller, nsid, length):
    """Writes random bytes, flushes and reads them back; the package moves all data by keyed SGL."""
    namespace = controller.namespace(nsid)
    content = os.urandom(length)
    written, read = controller.allocate(length), controller.allocate(length)
    written.write(content)
    namespace.write(written, slba=5)
    namespace.flush()
    namespace.read(read, slba=5)
    assert read.read() == content
    written.close()
    read.close()


def test_package_connects_and_identifies(target):
    """nvmeof: connect, identify controller and namespaces"""
    with connect(target) as controller:
        assert controller.info.sgls & 4 and controller.info.model
        assert controller.namespace(1).lba_size == 512
        assert controller.namespace(2).lba_size == 4096
        assert controller.namespace(1).info.size_lbas == (64 << 20) // 512


def test_package_reads_what_it_wrote(target):
    """nvmeof: write, flush and read on 512 and 4096 byte blocks"""
    with connect(target) as controller:
        for nsid, length in ((1, 512), (1, 65536), (2, 4096), (2, 131072)):
            round_trip(controller, nsid, length)


def test_package_splits_a_large_transfer(target):
    """nvmeof: 3 MiB, which it splits by MDTS, without MPA checksums"""
    ibverbs.CRC = False
    try:
        with connect(target) as controller:
            round_trip(controller, 1, 3 << 20)
    finally:
        ibverbs.CRC = True


def test_package_keeps_a_queue_full(target):
    """nvmeof: as many reads at once as the queue holds"""
    with connect(target, queue_depth=64) as controller:
        buffer = controller.allocate(4096 * 63)
        commands = [
            protocol.rw_command(protocol.OPC_READ, 2, lba, 1, buffer, lba_size=4096, buffer_offset=4096 * lba)
            for lba in range(63)
        ]
        requests = [controller.io.submit(command, buffer) for command in commands]
        while not all(request.done for request in requests):
            controller.io.poll()
        assert all(request.response.succeeded for request in requests)
        buffer.close()


def test_package_two_controllers_at_once(target):
    """nvmeof: a second controller sees what the first wrote"""
    with connect(target) as first, connect(target) as second:
        assert first.controller_id != second.controller_id
        content = os.urandom(8192)
        written, read = first.allocate(8192), second.allocate(8192)
        written.write(content)
        first.namespace(1).write(written, slba=100)
        second.namespace(1).read(read, slba=100)
        assert read.read() == content
        written.close()
        read.close()


def test_package_is_told_of_a_refused_read(target):
    """nvmeof: a status other than success reaches the caller"""
    with connect(target) as controller:
        buffer = controller.allocate(512)
        beyond = controller.namespace(1).info.size_lbas
        command = protocol.rw_command(protocol.OPC_READ, 1, beyond, 1, buffer, lba_size=512)
        try:
            controller.io.execute(command, buffer)
        except nvmeof.NVMeStatusError as error:
            assert error.completion.status_code == 0x80
        else:
            raise AssertionError("a read past the end succeeded")
        buffer.close()


def test_package_unknown_subsystem(target):
    """nvmeof: connecting to a subsystem that is not there"""
    try:
        nvmeof.Controller.connect("127.0.0.1", "nqn.2026-01.org.example:absent", port=target.port, timeout=10)
    except nvmeof.NVMeStatusError as error:
        assert (error.completion.status_type, error.completion.status_code) == (1, 0x82)
    else:
        raise AssertionError("connected to nothing")
