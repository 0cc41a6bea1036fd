"""A running `ironside-target serve` on this machine's loopback, for the tests written in Python."""

import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
READY_WITHIN_S = 20
DRAINED_WITHIN_S = 20
GIVEN = []
NQN = "nqn.2014-08.org.nvmexpress:uuid:1f0ea5de-51de-4a5e-9ea5-0123456789ab"


class TargetFailed(Exception):
    """The target did not start, ended by itself or did not end when asked."""


def build(program):
    """Builds one of the project's programs and returns its path."""
    print(f"building {program}", flush=True)
    subprocess.run(["cargo", "build", "--quiet", "--bin", program], cwd=TOP, check=True)
    return TOP / "build/debug" / program


class Target:
    """A context: serving within it, as the arguments say or the file `config`, which then names port and NQN too; on leaving it in peace the target must drain on SIGTERM and exit with 0."""

    def __init__(self, program, log, *arguments, port=None, any_host=True, config=None):
        self.port = port or free_port()
        self.address = ("127.0.0.1", self.port)
        self.nqn = NQN
        self.log = Path(log)
        listen = ["--listen", f"127.0.0.1:{self.port}"]
        admitted = ["--allow-any-host"] if any_host else []
        flags = [*listen, "--nqn", self.nqn, *admitted, *arguments]
        self.command = [program, "serve", *(["--config", config] if config else flags)]

    def __enter__(self):
        self.crashed = False
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._copy_log, daemon=True)
        self.reader.start()
        self.ready.wait(READY_WITHIN_S)
        if not re.search(r"^ready", self.said(), re.M):
            self.kill()
            raise TargetFailed(f"the target did not become ready:\n{self.said()}")
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None and not self.crashed:
                self.terminate()
        finally:
            self.kill()

    def said(self):
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def _copy_log(self):
        with open(self.log, "wb") as log:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                if line.startswith(b"ready"):
                    self.ready.set()
        self.ready.set()

    def check_alive(self):
        if self.process.poll() is not None:
            raise TargetFailed(f"the target ended by itself ({self.process.returncode}):\n{self.said()}")

    def terminate(self):
        self.check_alive()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(DRAINED_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise TargetFailed(f"the target did not end within {DRAINED_WITHIN_S} s of SIGTERM") from None
        if status:
            raise TargetFailed(f"the target exited with {status} after SIGTERM:\n{self.said()}")

    def crash(self):
        """Ends the target as a crash would, on purpose."""
        self.crashed = True
        self.kill()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()

    def resources(self):
        """(open files, threads, resident KiB) of the target."""
        place = Path("/proc") / str(self.process.pid)
        words = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
        return len(os.listdir(place / "fd")), int(words["Threads"]), int(words["VmRSS"].split()[0])


def free_port():
    """A port nobody listens at, and which was not given to another caller who may not have come to listening yet."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in GIVEN:
            GIVEN.append(port)
            return port
