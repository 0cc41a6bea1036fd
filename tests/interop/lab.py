"""What a case works with: targets on this machine's loopback, guests that reach them, and a place for the evidence."""

import contextlib
import re
import signal
import socket
import subprocess
import threading

from guest import Guest, GuestFailed
from kernel import HERE, SIW_BUILDS

READY_WITHIN_S = 20
DRAINED_WITHIN_S = 20


class CaseFailed(Exception):
    """The case found something wrong; the text says what."""


class Lab:
    # The address at which a guest finds this machine's loopback.
    HOST = "10.0.2.2"

    def __init__(self, kernel, target_program, place):
        self.kernel = kernel
        self.target_program = target_program
        self.place = place
        self.guests = 0
        self.targets = 0

    @contextlib.contextmanager
    def target(self, *arguments, port=None):
        """A serving `ironside-target`; at the end it must drain on SIGTERM and exit with 0."""
        self.targets += 1
        target = Target(self.target_program, port or free_port(), self.place / f"target-{self.targets}.log", arguments)
        try:
            target.wait_ready()
            yield target
            target.terminate()
        finally:
            target.kill()

    def start_guest(self, script, *, siw="siw", cpus=1, forward=None, **variables):
        """Starts a guest whose script is guest/library.sh followed by `script`, with `variables` set for it."""
        assert siw in SIW_BUILDS
        self.guests += 1
        settings = "".join(f"{name}='{value}'\n" for name, value in {"SIW": siw, **variables}.items())
        library = (HERE / "guest/library.sh").read_text()
        place = self.place / f"guest-{self.guests}"
        return Guest(self.kernel, place, f"{settings}{library}{script}", cpus=cpus, forward=forward)

    def guest(self, script, *, timeout_s=150, expected=None, **options):
        """Runs a guest to its end. Its kernel must have nothing to complain about, `expected` (a pattern) apart."""
        guest = self.start_guest(script, **options)
        self.finish(guest, timeout_s, expected)

    def finish(self, guest, timeout_s=150, expected=None):
        try:
            guest.finish(timeout_s)
        except GuestFailed as failure:
            raise CaseFailed(str(failure)) from failure
        complaints = guest.kernel_complaints(expected)
        if complaints:
            raise CaseFailed("the guest's kernel complains:\n" + "".join(f"      {line}\n" for line in complaints[:20]))


class Target:
    """One `ironside-target serve` process on a loopback port."""

    def __init__(self, program, port, log, arguments):
        self.port = port
        self.nqn = "nqn.2014-08.org.nvmexpress:uuid:1f0ea5de-51de-4a5e-9ea5-0123456789ab"
        command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--nqn", self.nqn, "--allow-any-host", *arguments]
        self.log = log
        self.lines = open(log, "wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._copy_log, daemon=True)
        self.reader.start()

    def _copy_log(self):
        with self.lines:
            for line in self.process.stdout:
                self.lines.write(line)
                self.lines.flush()
                if line.startswith(b"ready"):
                    self.ready.set()
        self.ready.set()

    def wait_ready(self):
        self.ready.wait(READY_WITHIN_S)
        if self.process.poll() is not None or not re.search(r"^ready", self.log.read_text(), re.M):
            raise CaseFailed(f"the target did not become ready:\n{self.log.read_text()[-2000:]}")

    def terminate(self):
        if self.process.poll() is not None:
            raise CaseFailed(f"the target ended by itself ({self.process.returncode}):\n{self.log.read_text()[-2000:]}")
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(DRAINED_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise CaseFailed(f"the target did not end within {DRAINED_WITHIN_S} s of SIGTERM") from None
        if status:
            raise CaseFailed(f"the target exited with {status} after SIGTERM:\n{self.log.read_text()[-2000:]}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
