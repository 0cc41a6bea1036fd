"""SPDK's own client, `spdk-rpc` from the PyPI package `spdk`, unchanged, drives our daemon over its control socket."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from conformance import INVALID_NAMESPACE, LBA_RANGE, expect, read, write
from peer import target as targets
from peer.nvme import Host, succeed

NQN = "nqn.2014-08.org.example:by-spdk"
HOST = "nqn.2014-08.org.example:host"


class Refused(Exception):
    """The daemon's answer: `code` and `message`."""

    def __init__(self, text):
        super().__init__(text)
        self.error = json.loads(text[text.index("response:") + len("response:") :])


class Driven:
    """A target which is told by spdk-rpc what to serve."""

    def __init__(self, serving, place, program):
        self.serving, self.place, self.program = serving, place, program
        self.socket = str(place / "control.sock")
        self.file = place / "target.toml"

    def rpc(self, *words, given=None):
        client = Path(sys.executable).parent / "spdk-rpc"
        command = [str(client), "-s", self.socket, *map(str, words)]
        done = subprocess.run(command, input=given, text=True, capture_output=True, timeout=60)
        if done.returncode:
            raise Refused(done.stdout + done.stderr)
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return done.stdout.strip()

    def host(self, nqn=NQN, port=None, **options):
        return Host(("127.0.0.1", port or self.serving.port), nqn, host_nqn=HOST, **options)

    def subsystem(self, nqn=NQN):
        (found,) = self.rpc("nvmf_get_subsystems", nqn)
        return found


@contextmanager
def driven(program):
    """A target with an empty configuration file but for its control socket."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        text = f'# Ours, and it stays.\nstate-dir = "{place}"\ncontrol = "{place}/control.sock"\nreactors = 2\n'
        (place / "target.toml").write_text(text)
        with targets.Target(program, place / "target.log", config=place / "target.toml") as serving:
            yield Driven(serving, place, program)


def listen(one, verb="add", port=None, **more):
    options = [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", value)]
    at = ["-t", "rdma", "-a", "127.0.0.1", "-s", port or one.serving.port]
    return one.rpc(f"nvmf_subsystem_{verb}_listener", NQN, *at, *options)


def build_up(one):
    """The steps of SPDK's guide: a transport, a bdev, a subsystem, a namespace, a listener."""
    one.rpc("nvmf_create_transport", "-t", "RDMA")
    assert one.rpc("bdev_malloc_create", "-b", "Malloc0", 64, 512) == "Malloc0"
    one.rpc("nvmf_create_subsystem", NQN, "-s", "SPDK00000000000001", "-m", 32)
    one.rpc("nvmf_subsystem_add_host", NQN, HOST)
    one.rpc("nvmf_subsystem_add_ns", NQN, "Malloc0")
    listen(one)


def test_from_nothing_to_a_host_at_work(program):
    """spdk-rpc: the steps of SPDK's guide, and a host reads and writes"""
    with driven(program) as one:
        methods = one.rpc("rpc_get_methods")
        assert {"nvmf_create_subsystem", "bdev_malloc_create", "framework_get_config"} <= set(methods)
        assert one.rpc("spdk_get_version")["version"].startswith("Ironside")
        build_up(one)
        with one.host() as connected:
            data = os.urandom(8192)
            succeed(write(connected.io[0], 64, data))
            assert succeed(read(connected.io[0], 64, 16)).data == data
            (controller,) = one.rpc("nvmf_subsystem_get_controllers", NQN)
            assert (controller["hostnqn"], controller["num_io_qpairs"]) == (HOST, len(connected.io))
            queues = one.rpc("nvmf_subsystem_get_qpairs", NQN)
            assert sorted(queue["qid"] for queue in queues) == list(range(1 + len(connected.io)))
            assert {queue["listen_address"]["trsvcid"] for queue in queues} == {str(one.serving.port)}
            groups = one.rpc("nvmf_get_stats")["poll_groups"]
            assert len(groups) == 2 and sum(group["current_io_qpairs"] for group in groups) == len(connected.io)
            assert sum(group["completed_nvme_io"] for group in groups) >= 2
            used = one.rpc("bdev_get_iostat", "--names", "Malloc0")
            (bdev,) = used["bdevs"]
            assert (bdev["name"], bdev["bytes_read"], bdev["bytes_written"]) == ("Malloc0", 8192, 8192)
            assert (bdev["num_read_ops"], bdev["num_write_ops"], bdev["num_unmap_ops"]) == (1, 1, 0)
            assert bdev["min_write_latency_ticks"] == bdev["max_write_latency_ticks"] == bdev["write_latency_ticks"]
            assert 0 < bdev["write_latency_ticks"] < used["ticks"] and bdev["io_error"] == {}
            expect(read(connected.io[0], 1 << 40, 1), LBA_RANGE)
            assert one.rpc("bdev_get_iostat")["bdevs"][0]["io_error"] == {"failed": 1}
            channels = one.rpc("bdev_get_iostat", "--names", "Malloc0", "-c")["channels"]
            assert [channel["thread_id"] for channel in channels] == [0, 1]
            assert sum(channel["num_read_ops"] for channel in channels) == 1
        assert one.subsystem()["namespaces"][0]["uuid"] == one.rpc("bdev_get_bdevs", "-b", "Malloc0")[0]["uuid"]


def test_changes_reach_a_host_that_is_connected(program):
    """spdk-rpc: namespaces come and go while a host works, memory keeps its content"""
    with driven(program) as one:
        build_up(one)
        with one.host() as connected:
            data = os.urandom(512)
            succeed(write(connected.io[0], 7, data))
            one.rpc("bdev_null_create", "Null0", 16, 4096)
            one.rpc("nvmf_subsystem_add_ns", NQN, "Null0", "-n", 5)
            assert succeed(read(connected.io[0], 0, 1, nsid=1)).data == bytes(512)
            assert [namespace["nsid"] for namespace in one.subsystem()["namespaces"]] == [1, 5]
            one.rpc("nvmf_subsystem_remove_ns", NQN, 1)
            expect(read(connected.io[0], 7, 1), INVALID_NAMESPACE)
            one.rpc("nvmf_subsystem_add_ns", NQN, "Malloc0", "-n", 1)
            assert succeed(read(connected.io[0], 7, 1)).data == data
            one.rpc("bdev_set_qos_limit", "Malloc0", "--rw-ios-per-sec", 20000)
            limits = one.rpc("bdev_get_bdevs", "-b", "Malloc0")[0]["assigned_rate_limits"]
            assert limits["rw_ios_per_sec"] == 20000
            assert succeed(read(connected.io[0], 7, 1)).data == data


def test_hosts_and_listeners(program):
    """spdk-rpc: who is admitted, where, and the states of listeners"""
    with driven(program) as one:
        build_up(one)
        other = targets.free_port()
        listen(one, port=other, ana_state="inaccessible")
        states = {
            entry["address"]["trsvcid"]: entry["ana_states"][0]["ana_state"]
            for entry in one.rpc("nvmf_subsystem_get_listeners", NQN)
        }
        assert states == {str(one.serving.port): "optimized", str(other): "inaccessible"}
        at = ["-t", "rdma", "-a", "127.0.0.1", "-s", other, "-n", "non_optimized", "-g", 1]
        one.rpc("nvmf_subsystem_listener_set_ana_state", NQN, *at)
        one.host(port=other).close()
        listen(one, "remove", port=other)
        try:
            one.host(port=other)
        except OSError:
            pass
        else:
            raise AssertionError("a listener that was removed still accepts")
        one.rpc("nvmf_subsystem_remove_host", NQN, HOST)
        assert one.subsystem()["hosts"] == []
        one.rpc("nvmf_subsystem_allow_any_host", NQN, "--allow-any-host")
        assert one.subsystem()["allow_any_host"]
        one.host().close()


def test_refusals_are_told(program):
    """spdk-rpc: what we do not have is refused with SPDK's codes and our words"""
    with driven(program) as one:
        build_up(one)
        for words, code, said in (
            (("nvmf_create_transport", "-t", "TCP"), -32602, "RDMA"),
            (("nvmf_create_subsystem", NQN), -32602, "already"),
            (("nvmf_delete_subsystem", "nqn.2014-08.org.example:none"), -32602, "no subsystem"),
            (("bdev_get_bdevs", "-b", "None0"), -19, "None0"),
            (("bdev_get_iostat", "--names", "None0"), -19, "None0"),
            (("bdev_get_iostat", "--reset-mode", "all"), -32602, "reset_mode"),
            (("bdev_aio_create", one.place / "absent", "Aio0"), -2, "missing"),
            (("bdev_malloc_create", 1, 520), -22, "whole blocks"),
            (("bdev_malloc_create", 64, 512, "-m", 8), -32602, "md_size"),
            (("bdev_rbd_create", "pool", "image", 512), -32601, "Method not found"),
        ):
            before = one.file.read_text()
            try:
                one.rpc(*words)
            except Refused as refused:
                assert refused.error["code"] == code and said in refused.error["message"], refused.error
            else:
                raise AssertionError(f"{words} was not refused")
            assert one.file.read_text() == before, "a refusal changed the file"


def test_files_and_what_is_kept(program):
    """spdk-rpc: a file as a bdev; the configuration file has it all, and a restart serves the same"""
    with driven(program) as one:
        build_up(one)
        image = one.place / "disk.img"
        image.write_bytes(bytes(1 << 20))
        one.rpc("bdev_uring_create", image, "Uring0", 512)
        one.rpc("nvmf_subsystem_add_ns", NQN, "Uring0")
        data = os.urandom(512)
        with one.host() as connected:
            succeed(write(connected.io[0], 3, data, nsid=2))
        assert image.read_bytes()[3 * 512 : 4 * 512] == data
        text = one.file.read_text()
        assert text.startswith("# Ours, and it stays.") and NQN in text
        before = one.subsystem()
        saved = one.rpc("save_config")
        one.serving.terminate()
        with targets.Target(program, one.place / "again.log", config=one.file):
            again = one.subsystem()
            kept = lambda one: {**one, "namespaces": one["namespaces"][1:]}  # noqa: E731
            assert kept(again) == kept(before), "memory alone is another namespace now"
            with one.host() as connected:
                assert succeed(read(connected.io[0], 3, 1, nsid=2)).data == data
            one.rpc("nvmf_delete_subsystem", NQN)
            one.rpc("bdev_malloc_delete", "Malloc0")
            one.rpc("bdev_uring_delete", "Uring0")
            one.rpc("load_config", given=json.dumps(saved))
            assert one.subsystem() == before, "what spdk-rpc saved it loads again"
        one.serving.crashed = True


# Our own command line ------------------------------------------------------------------------------------------------


def ctl(one, *words, status=0):
    command = [one.program, "ctl", "-s", one.socket, *map(str, words)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60)
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def test_ctl_does_it_in_words(program):
    """ctl: a subsystem with two namespaces, limited, listed, removed; refusals change nothing"""
    with driven(program) as one:
        at = f"127.0.0.1:{one.serving.port}"
        assert "no subsystem is served" in ctl(one, "status")
        ctl(one, "subsystem", "create", NQN, "--host", HOST, "--listen", at)
        ctl(one, "namespace", "add", NQN, f"{one.place}/disk.img,size=1MiB,lba=512")
        ctl(one, "namespace", "add", NQN, "ram:64MiB,lba=512", "--nsid", 7)
        listed = json.loads(ctl(one, "-o", "json", "subsystem", "list"))
        assert [namespace["nsid"] for namespace in listed[1]["namespaces"]] == [1, 7]
        with one.host() as connected:
            data = os.urandom(512)
            succeed(write(connected.io[0], 5, data))
            assert (one.place / "disk.img").read_bytes()[5 * 512 : 6 * 512] == data
            assert HOST in ctl(one, "status") and HOST in ctl(one, "controllers", NQN)
            ctl(one, "bdev", "limit", "File0", "--iops", 9000)
            assert "rw_ios_per_sec=9000" in ctl(one, "bdev", "list")
            before = one.file.read_text()
            said = ctl(one, "namespace", "add", NQN, "ram:1MiB", "--nsid", 7, status=1)
            assert "namespace 7 already" in said and one.file.read_text() == before, "nothing is done by halves"
            ctl(one, "namespace", "remove", NQN, 7)
            assert "Ram0" not in ctl(one, "bdev", "list")
            ctl(one, "listener", "state", NQN, at, "non-optimized")
            assert "1=non-optimized" in ctl(one, "listener", "list", NQN)
            assert succeed(read(connected.io[0], 5, 1)).data == data
        assert json.loads(ctl(one, "rpc", "ironside_get_config"))["file"] == str(one.file)


def test_ctl_reload_says_what_came_of_it(program):
    """ctl: reload tells changes, what takes a restart, and an error with its line"""
    with driven(program) as one:
        ctl(one, "subsystem", "create", NQN, "--allow-any-host")
        good = one.file.read_text()
        assert ctl(one, "reload") == "nothing has changed\n"
        more = "[[bdev]]\nname = 'N'\nnull = '1MiB'\n[[subsystem]]\nnamespace = [{ bdev = 'N' }]"
        one.file.write_text(good.replace("reactors = 2", "reactors = 3").replace("[[subsystem]]", more))
        said = ctl(one, "reload")
        assert f"+1 namespace 1 of {NQN}" in said and "`reactors` stays as it is until a restart" in said
        one.file.write_text(good + "colour = 1\n")
        said = ctl(one, "reload", status=1)
        assert "unknown key `colour`" in said and f"target.toml:{good.count(chr(10)) + 1}:1" in said
        assert "has been changed" in ctl(one, "host", "any", NQN, "off", status=1), "it is not written over"
        one.file.write_text(good)
        ctl(one, "reload")
        saved = ctl(one, "save")
        assert saved == good
    said = ctl(one, "status", status=3)
    assert "no target answers" in said and "control" in said
