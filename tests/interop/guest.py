"""One guest: a real Linux kernel under QEMU's software emulation, on this machine's own root file system.

The guest runs one shell script and ends. What it printed (`log`), its kernel's log (`dmesg`), the serial console
(`console`) and everything on its network (`network.pcap`) stay in the directory it was given.
"""

import json
import re
import shutil
import socket
import subprocess
import threading
import time

from kernel import HERE

# Where the script begins in the kernel's log; what the emulated machine said while booting is not ours to judge.
BEGINNING = "ironside: the script begins"
# Messages at warning level or above which a healthy run prints as well.
# The last three are an emulated processor that was kept from running: the machine is busy, nothing else.
HARMLESS = re.compile(
    r"loading out-of-tree module|module verification failed|speed is unknown"
    r"|hrtimer: interrupt took|clocksource|sched: (RT|DL) throttling|NMI handler .* took too long"
)
WARNING = 4
TROUBLE = re.compile(r"BUG|WARNING|Oops|Call Trace|RIP:|general protection|refcount|hung task|lockup")


class GuestFailed(Exception):
    """The guest's script, or the guest itself, did not come to a good end."""


class Guest:
    """A running guest. `finish` waits for its script and raises GuestFailed unless it ended with status 0."""

    def __init__(self, kernel, place, script, *, cpus=1, memory_mib=1024, forward=None, devices=(), files=(), shown_as=""):
        self.place = place
        self.shown_as = shown_as
        place.mkdir(parents=True)
        # What lies in /out is there in the guest, even if it comes from this machine's /tmp, which the guest does not see.
        for file in files:
            shutil.copy2(file, place)
        (place / "script").write_text(script)
        (place / "main").write_text((HERE / "guest/main").read_text().replace("BEGINNING", BEGINNING))
        forwarding = f",hostfwd=tcp:127.0.0.1:{forward[0]}-:{forward[1]}" if forward else ""
        self.monitor, theirs = socket.socketpair()
        self.answers = self.monitor.makefile("rb")
        share = "security_model=none,multidevs=remap"
        # Preferred where we may: an emulated processor that is kept from running sees time leap.
        command = f"""
            nice -n -5 qemu-system-x86_64 -accel tcg,thread=multi,tb-size=512 -machine q35,hpet=off -cpu max,la57=off
            -smp {cpus} -m {memory_mib} -nodefaults -no-user-config -no-reboot -display none
            -kernel {kernel}/vmlinuz -initrd {kernel}/initrd
            -fsdev local,id=root,path=/,readonly=on,{share} -device virtio-9p-pci,fsdev=root,mount_tag=root
            -fsdev local,id=out,path={place},{share} -device virtio-9p-pci,fsdev=out,mount_tag=out
            -serial file:{place}/console
            -device virtio-serial-pci -chardev stdio,id=terminal,signal=off -device virtconsole,chardev=terminal
            -netdev user,id=net{forwarding} -device virtio-net-pci,netdev=net
            -object filter-dump,id=dump,netdev=net,file={place}/network.pcap
            -chardev socket,id=monitor,fd={theirs.fileno()} -mon chardev=monitor,mode=control
            -device virtio-rng-pci -device isa-debug-exit,iobase=0x501,iosize=4
        """.split()
        boot = (
            "console=ttyS0 quiet loglevel=4 mitigations=off nokaslr panic=-1 tsc=reliable no_timer_check "
            f"random.trust_cpu=on cryptomgr.notests audit=0 selinux=0 apparmor=0 ironside.kernel={kernel}"
        )
        self.process = subprocess.Popen(
            [*command, "-append", boot, *devices],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.machine("qmp_capabilities")
        self.reader = threading.Thread(target=self._copy_log, daemon=True)
        self.reader.start()

    def _copy_log(self):
        """Keeps what the guest prints and shows its steps (lines that begin with `==`) as they come."""
        with open(self.place / "log", "wb") as log:
            for line in self.process.stdout:
                log.write(line.replace(b"\r\n", b"\n"))
                log.flush()
                if line.startswith(b"=="):
                    print("   " + self.shown_as + line.decode(errors="replace").rstrip(), flush=True)

    def finish(self, timeout_s):
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise GuestFailed(f"the guest did not finish within {timeout_s} s; last words:\n{self.tail()}") from None
        finally:
            self.stop()
        try:
            status = int((self.place / "status").read_text())
        except FileNotFoundError:
            raise GuestFailed(f"the guest died; last words:\n{self.tail('console')}{self.tail()}") from None
        if status:
            raise GuestFailed(f"the guest's script ended with status {status}; last words:\n{self.tail()}")

    def machine(self, command, **arguments):
        """Has QEMU do something to the machine, by QMP: machine("stop"), machine("set_link", name="net", up=False)."""
        self.monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        answer = next(line for line in map(json.loads, self.answers) if "return" in line or "error" in line)
        if "error" in answer:
            raise GuestFailed(f"QEMU refuses {command}: {answer['error']['desc']}")

    def wait_step(self, text, timeout_s=900):
        """Waits until the guest has printed a line that contains `text`."""
        self.wait_until(lambda: text in self.said(), f"the guest never came to {text!r}", timeout_s)

    def wait_until(self, condition, otherwise, timeout_s=900):
        """Waits for a condition while the guest runs; fails with the text `otherwise`."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise GuestFailed(f"{otherwise}; last words:\n{self.tail()}")
            time.sleep(0.1)

    def release(self, what="released"):
        """Lets a script that waits in `until_released [WHAT]` go on."""
        (self.place / what).touch()

    def cut_power(self):
        """Ends the machine between two instructions; what its drives have not been told to keep may be gone."""
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.answers.close()
        self.monitor.close()

    def said(self, name="log"):
        return (self.place / name).read_text(errors="replace") if (self.place / name).exists() else ""

    def json(self, name):
        """What a script's `keep NAME …` left, as JSON."""
        return json.loads(self.said(name))

    def mpa_replies(self):
        """The flags of each MPA reply on the guest's network."""
        return [found[0] for found in re.findall(rb"MPA ID Rep Frame(.)", (self.place / "network.pcap").read_bytes(), re.S)]

    def tail(self, name="log", lines=12):
        return "".join(f"      {line}\n" for line in self.said(name).splitlines()[-lines:])

    def kernel_complaints(self, expected=None):
        """Lines of the kernel's log that speak of trouble, less those that match the `expected` pattern."""
        found = []
        for line in self.said("dmesg").partition(BEGINNING)[2].splitlines()[1:]:
            match = re.match(r"<(\d+)>(.*)", line)
            level, text = (int(match[1]) & 7, match[2]) if match else (WARNING, line)
            bad = TROUBLE.search(text) or level <= WARNING and not HARMLESS.search(text)
            if bad and not (expected and re.search(expected, text)):
                found.append(text)
        return found
