"""What the target tells of itself by HTTP, read by the parser of the PyPI package `prometheus_client`."""

import json
import os
import re
import socket
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from conformance import LBA_RANGE, expect, read, write
from peer import target as targets
from peer.nvme import Host, succeed
from prometheus_client.parser import text_string_to_metric_families

NQN = "nqn.2014-08.org.example:counted"
HOST = 'nqn.2014-08.org.example:host-"quoted"'
DASHBOARD = targets.TOP / "tools/grafana/ironside.json"


class Counted:
    def __init__(self, serving, port):
        self.serving, self.port = serving, port

    def ask(self, path="/metrics", **options):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20, **options) as answer:
            return answer.read().decode()

    def values(self):
        """{name: [(labels, value)]} of all there is."""
        found = {}
        for family in text_string_to_metric_families(self.ask()):
            assert family.documentation and family.name.startswith("ironside_"), family.name
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def sum(self, name, **labels):
        matching = lambda found: all(found.get(key) == value for key, value in labels.items())  # noqa: E731
        return sum(value for found, value in self.values().get(f"ironside_{name}", []) if matching(found))

    def host(self):
        return Host(("127.0.0.1", self.serving.port), NQN, host_nqn=HOST, queues=2)


@contextmanager
def counted(program):
    with tempfile.TemporaryDirectory() as name:
        place, port, told = Path(name), targets.free_port(), targets.free_port()
        text = f"""
            state-dir = "{place}"
            metrics = "127.0.0.1:{told}"
            reactors = 2
            listen = ["127.0.0.1:{port}"]
            [[subsystem]]
            nqn = "{NQN}"
            allow-any-host = true
            namespace = [{{ ram = "64MiB", lba = 512 }}]
        """
        (place / "target.toml").write_text(text)
        with targets.Target(program, place / "target.log", port=port, config=place / "target.toml") as serving:
            yield Counted(serving, told)


def test_metrics_count_what_happened(program):
    """metrics: commands, bytes and errors by host, listener and reactor, and they stay when a host goes"""
    with counted(program) as one:
        listener = f"127.0.0.1:{one.serving.port}"
        with one.host() as connected:
            for queue in connected.io:
                succeed(write(queue, 0, os.urandom(8192)))
                succeed(read(queue, 0, 4))
            expect(read(connected.io[0], 1 << 40, 1), LBA_RANGE)
            expect(read(connected.io[1], 1 << 40, 1), LBA_RANGE)
            assert one.sum("controllers", host=HOST, subsystem=NQN) == 1
            assert one.sum("reactor_queues") == 3
        for _ in range(2):
            mine = {"host": HOST, "subsystem": NQN, "listener": listener, "kind": "io"}
            assert one.sum("written_bytes_total", **mine) == 2 * 8192
            assert one.sum("read_bytes_total", **mine) == 2 * 2048
            assert one.sum("reads_completed_total", **mine) == one.sum("writes_completed_total", **mine) == 2
            assert one.sum("errors_total", **mine, status="0/80") == one.sum("failed_commands_total", **mine) == 2
            assert one.sum("media_errors_total") == 0
            namespace = {"subsystem": NQN, "nsid": "1"}
            for operation, count in (("read", 2), ("write", 2), ("flush", 0)):
                assert one.sum("command_duration_seconds_count", operation=operation) == count
                for bound, least in (("+Inf", count), ("0.000001024", 0)):
                    assert least <= one.sum("command_duration_seconds_bucket", operation=operation, le=bound) <= count
            # The data of a write has to be fetched first: that is never done in one turn.
            assert 0 < one.sum("command_duration_seconds_sum", operation="write") < 60
            for operation, commands, failed, moved in (("read", 4, 2, 2 * 2048), ("write", 2, 0, 2 * 8192), ("other", 0, 0, 0)):
                told = [
                    one.sum(f"namespace_{number}_total", **namespace, operation=operation)
                    for number in ("commands", "failed_commands", "bytes")
                ]
                assert told == [commands, failed, moved], (operation, told)
            # The second time after the queues have gone, and others have come.
            before = one.sum("commands_total", **mine)
            one.host().close()
            assert one.sum("commands_total", **mine) >= before
        assert one.sum("queues_total", kind="admin") == 3 and one.sum("queues_total", kind="io") == 6
        assert one.sum("namespace_capacity_bytes", subsystem=NQN, nsid="1") == 64 << 20
        assert one.sum("build_info") == 1


def test_metrics_are_told_to_nobody_who_is_up_to_no_good(program):
    """metrics: other paths and methods are refused, slow clients hold up nobody"""
    with counted(program) as one:
        dawdlers = [socket.create_connection(("127.0.0.1", one.port)) for _ in range(8)]
        for dawdler in dawdlers:
            dawdler.sendall(b"GET /metr")
        assert "ironside_build_info" in one.ask()
        for path, code in (("/secret", 404), ("/metrics/../etc", 404)):
            try:
                one.ask(path)
            except urllib.error.HTTPError as refused:
                assert refused.code == code
            else:
                raise AssertionError(f"{path} was answered")
        with socket.create_connection(("127.0.0.1", one.port)) as stranger:
            stranger.sendall(b"\x00" * 20000)
            assert b" 431 " in stranger.recv(4096)
        for dawdler in dawdlers:
            dawdler.close()
        assert one.ask("/").startswith("Ironside")


def test_the_dashboard_shows_what_there_is(program):
    """metrics: each number the Grafana dashboard asks for is told"""
    with counted(program) as one:
        with one.host() as connected:
            expect(read(connected.io[0], 1 << 40, 1), LBA_RANGE)
            there = set(one.values())
        panels = json.loads(DASHBOARD.read_text())["panels"]
        asked = {name for panel in panels for query in panel.get("targets", []) for name in re.findall(r"ironside_\w+", query["expr"])}
        assert len(asked) >= 8
        # Adapters are told of where there are some.
        assert asked - there <= {"ironside_adapter_counter"}, asked - there
