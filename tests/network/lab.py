"""Two network namespaces, a bad link between them, our target in one and our initiator in the other."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from peer.initiator import run

HERE = Path(__file__).resolve().parent
SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
PORT = 4420
NQN = "nqn.2014-08.org.nvmexpress:uuid:5a0fba3c-36e5-4c0e-a4c4-7a26b1c3e0aa"
SIZE = 64 << 20
# A bound for what hangs, not a measure of speed.
WITHIN_S = 300


def cannot_run():
    """Why this machine cannot run the tests; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun: modprobe tun"
    return None


class Lab:
    """A context. What it made is gone when it is left, whatever happened."""

    def __init__(self, place, serving, attaching, mtu=1500, seed=1):
        self.place, self.serving, self.attaching = place, serving, attaching
        self.mtu, self.seed = mtu, seed
        self.names = [f"ironside-{os.getpid()}-{side}" for side in ("target", "host")]
        self.processes = []
        self.attachment = None

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_):
        self._stop()

    def _start(self):
        for name in self.names:
            run("ip", "netns", "add", name)
        ends = [word for pair in zip(self.names, (SERVER, CLIENT)) for word in pair]
        command = [sys.executable, HERE / "link.py", *ends, str(self.mtu), str(self.seed)]
        pipe = subprocess.PIPE
        self.link = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.processes.append(self.link)
        assert self.link.stdout.readline() == "ready\n", "the link did not come up"
        self.start_target()

    def _stop(self):
        if self.attachment:
            self.ironside("disconnect", "--force", "-n", NQN, check=False)
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)

    def start_target(self):
        log = open(self.place / "target.log", "ab")
        arguments = ["serve", "--listen", f"{SERVER}:{PORT}", "--nqn", NQN, "--allow-any-host", "--reactors", "1"]
        command = [self.serving, *arguments, "--namespace", f"{self.place / 'volume'},size={SIZE},lba=512"]
        environment = {**os.environ, "XDG_STATE_HOME": str(self.place)}
        self.target = subprocess.Popen(
            self.within(0, command), stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
        self.processes.append(self.target)
        line = self.target.stdout.readline()
        assert re.match("ready", line), f"the target did not become ready: {line}"

    def within(self, side, command):
        return ["nsenter", f"--net=/run/netns/{self.names[side]}", *map(str, command)]

    def shape(self, **settings):
        """How bad the link is from now on: loss and reorder as fractions, delay_ms and jitter_ms one way.

        Gives how many packets were `lost` and were `overtakers` so far.
        """
        return self._tell("set " + " ".join(f"{name}={value}" for name, value in settings.items()))

    def down(self):
        self._tell("down")

    def up(self):
        self._tell("up")

    def _tell(self, words):
        self.link.stdin.write(words + "\n")
        self.link.stdin.flush()
        return {name: int(count) for name, count in (word.split("=") for word in self.link.stdout.readline().split())}

    def stop_for(self, process, seconds):
        """Stops a process, which then reads nothing: the window towards it closes."""
        os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process, signal.SIGCONT)

    def ironside(self, *arguments, check=True):
        environment = {**os.environ, "IRONSIDE_RUNTIME_DIR": str(self.place / "run")}
        done = subprocess.run(
            self.within(1, [self.attaching, *arguments]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=WITHIN_S,
        )
        assert not check or done.returncode == 0, f"ironside {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def attach(self, *arguments):
        """Attaches the volume as an NBD socket."""
        connect = ["connect", "-a", SERVER, "-s", str(PORT), "-n", NQN, "--via", "nbd", "-o", "json"]
        self.attachment = json.loads(self.ironside(*connect, *arguments))
        self.uri = f"nbd+unix:///?socket={self.attachment['DevicePath']}"

    def detach(self):
        self.ironside("disconnect", "-n", NQN)
        self.attachment = None

    def listed(self):
        (device,) = json.loads(self.ironside("list", "-o", "json"))["Devices"]
        return device

    def eventually_is(self, state):
        deadline = time.monotonic() + WITHIN_S
        while self.listed()["State"] != state:
            assert time.monotonic() < deadline, f"it never became {state}: {self.listed()}"
            time.sleep(0.1)

    def fio(self, *arguments):
        """Starts fio on the volume: it writes, reads back and compares checksums."""
        base = "--name=network --ioengine=nbd --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1"
        command = ["fio", *base.split(), f"--uri={self.uri}", *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def finish(self, fio, status=0):
        output, _ = fio.communicate(timeout=WITHIN_S)
        assert (fio.returncode == 0) == (status == 0), f"fio exited with {fio.returncode}:\n{output}"
        return output

    def verify(self, *arguments):
        """fio from beginning to end."""
        return self.finish(self.fio(*arguments))

    def connections(self):
        """How many controllers the target has seen connect."""
        log = (self.place / "target.log").read_text()
        return len(re.findall("controller connected", log))
