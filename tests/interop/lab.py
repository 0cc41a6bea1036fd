"""What a case works with: targets on this machine's loopback, guests that reach them, and a place for the evidence."""

from pathlib import Path

import kernel
from guest import Guest, GuestFailed
from peer.target import Target

# A bound for a guest that hangs, not a measure of its speed: emulation is slow where cores are shared.
GUEST_WITHIN_S = 1800


class CaseFailed(Exception):
    """The case found something wrong; the text says what."""


class Lab:
    # The address at which a guest finds this machine's loopback.
    HOST = "10.0.2.2"

    def __init__(self, programs, place, shown_as=""):
        self.programs = programs
        self.place = place
        self.shown_as = shown_as
        self.guests = []
        self.targets = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for guest in self.guests:
            guest.stop()

    def target(self, *arguments, **options):
        """A context in which `ironside-target` serves with these arguments; `port`, `any_host` and `config` as in peer.target."""
        self.targets += 1
        return Target(self.programs["target"], self.place / f"target-{self.targets}.log", *arguments, **options)

    def start_guest(
        self, script, *, suite="backports", siw="siw", cpus=1, forward=None, devices=(), programs=(), **variables
    ):
        """Starts a guest whose script is guest/library.sh followed by `script`, with `variables` set for it.

        `suite`: whose kernel, of Debian's "backports" or its "own"; `siw`: the driver's build, "siw-crc" asks for MPA
        checksums; `forward`: (port of this machine, port of the guest) that lead to it; `devices`: arguments of QEMU;
        `programs`: those of ours to run in the guest, "target" as $TARGET, "ironside" as $IRONSIDE, "tools" as $TOOLS.
        """
        assert siw in kernel.SIW_BUILDS
        files = [self.programs[name] for name in programs]
        variables |= {name.upper(): f"/out/{file.name}" for name, file in zip(programs, map(Path, files))}
        settings = "".join(f"{name}='{value}'\n" for name, value in {"SIW": siw, **variables}.items())
        library = (kernel.HERE / "guest/library.sh").read_text()
        place = self.place / f"guest-{len(self.guests) + 1}"
        guest = Guest(
            kernel.prepare(suite),
            place,
            f"{settings}{library}{script}",
            cpus=cpus,
            forward=forward,
            devices=devices,
            files=files,
            shown_as=self.shown_as,
        )
        self.guests.append(guest)
        return guest

    def guest(self, script, *, timeout_s=GUEST_WITHIN_S, expected=None, **options):
        """Runs a guest to its end. Its kernel must have nothing to complain about, `expected` (a pattern) apart."""
        guest = self.start_guest(script, **options)
        self.finish(guest, timeout_s, expected)
        return guest

    def finish(self, guest, timeout_s=GUEST_WITHIN_S, expected=None):
        try:
            guest.finish(timeout_s)
        except GuestFailed as failure:
            raise CaseFailed(str(failure)) from failure
        complaints = guest.kernel_complaints(expected)
        if complaints:
            raise CaseFailed("the guest's kernel complains:\n" + "".join(f"      {line}\n" for line in complaints[:20]))
