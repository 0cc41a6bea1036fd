"""What a case works with: targets on this machine's loopback, guests that reach them, and a place for the evidence."""

from guest import Guest, GuestFailed
from kernel import HERE, SIW_BUILDS
from peer.target import Target

# A bound for a guest that hangs, not a measure of its speed: emulation is slow where cores are shared.
GUEST_WITHIN_S = 600


class CaseFailed(Exception):
    """The case found something wrong; the text says what."""


class Lab:
    # The address at which a guest finds this machine's loopback.
    HOST = "10.0.2.2"

    def __init__(self, kernel, programs, place):
        self.kernel = kernel
        self.programs = programs
        self.place = place
        self.guests = []
        self.targets = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for guest in self.guests:
            guest.stop()

    def target(self, *arguments, port=None):
        """A context in which `ironside-target` serves with these arguments."""
        self.targets += 1
        return Target(self.programs["target"], self.place / f"target-{self.targets}.log", *arguments, port=port)

    def start_guest(self, script, *, siw="siw", cpus=1, forward=None, **variables):
        """Starts a guest whose script is guest/library.sh followed by `script`, with `variables` set for it."""
        assert siw in SIW_BUILDS
        settings = "".join(f"{name}='{value}'\n" for name, value in {"SIW": siw, **variables}.items())
        library = (HERE / "guest/library.sh").read_text()
        place = self.place / f"guest-{len(self.guests) + 1}"
        guest = Guest(self.kernel, place, f"{settings}{library}{script}", cpus=cpus, forward=forward)
        self.guests.append(guest)
        return guest

    def guest(self, script, *, timeout_s=GUEST_WITHIN_S, expected=None, **options):
        """Runs a guest to its end. Its kernel must have nothing to complain about, `expected` (a pattern) apart."""
        guest = self.start_guest(script, **options)
        self.finish(guest, timeout_s, expected)

    def finish(self, guest, timeout_s=GUEST_WITHIN_S, expected=None):
        try:
            guest.finish(timeout_s)
        except GuestFailed as failure:
            raise CaseFailed(str(failure)) from failure
        complaints = guest.kernel_complaints(expected)
        if complaints:
            raise CaseFailed("the guest's kernel complains:\n" + "".join(f"      {line}\n" for line in complaints[:20]))
