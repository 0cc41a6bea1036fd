"""A volume attached by `ironside connect`, for the tests written in Python."""

import json
import subprocess


class Attached:
    """A context: `ironside connect` on entering it, `ironside disconnect` on leaving it in peace."""

    def __init__(self, program, target, *arguments):
        self.program, self.nqn = program, target.nqn
        self.target = ["-t", "rdma", "-a", target.address[0], "-s", str(target.port)]
        self.arguments = arguments

    def __enter__(self):
        self.run("connect", *self.target, "-n", self.nqn, *self.arguments)
        devices = [device for device in self.list() if device["SubsystemNQN"] == self.nqn]
        assert len(devices) == 1, f"attached once, listed {len(devices)} times"
        self.device = devices[0]["DevicePath"]
        return self

    def __exit__(self, kind, *_):
        command = [self.program, "disconnect", "-n", self.nqn]
        if kind is not None:
            subprocess.run([*command, "--force"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return
        self.run(*command[1:])
        assert all(device["SubsystemNQN"] != self.nqn for device in self.list()), "still listed after disconnect"

    def list(self):
        return json.loads(self.run("list", "-o", "json"))["Devices"]

    def run(self, *arguments):
        return run(self.program, *arguments)


def run(*command, status=0, timeout_s=400):
    """Runs a command to its end and returns what it printed; any other exit status than `status` is a failure."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != status:
        raise AssertionError(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
