"""A target misuses the keys of `ironside` by a RoCE adapter in software (rxe): the adapter refuses, however the key was made."""

from pathlib import Path

PEER = Path(__file__).resolve().parent.parent / "guest/wrong_keys.py"
# rxe checks the bounds of regions, and not those of windows.
MISUSES = {
    "window": "another-key the-other-direction after-its-command",
    "dynamic": "another-key the-other-direction after-its-command beyond-its-bounds",
}


def run(lab):
    guest = lab.start_guest(
        """
        roce
        misuse() {
            port=$((port + 1))
            /usr/bin/python3 "$PEER" 10.9.0.1 $port $2 > /tmp/peer 2>&1 & peer=$!
            wait_until 'grep -q ready /tmp/peer || ! kill -0 $peer'
            must_fail "$IRONSIDE" connect -a 10.9.0.1 -s $port -n "$NQN" --provider ibv --registration $1 --via nbd
            wait $peer || { cat /tmp/peer; fail "$1: $2"; }
        }
        port=4430
        export HOME=/tmp
        step "keys which are bound to windows"
        for what in $WINDOW; do misuse window $what; done
        step "keys of regions made for a command"
        for what in $DYNAMIC; do misuse dynamic $what; done
        """,
        programs=("ironside",),
        NQN="nqn.2026-01.org.example:wrong-keys",
        PEER=str(PEER),
        WINDOW=MISUSES["window"],
        DYNAMIC=MISUSES["dynamic"],
    )
    # What rxe says at the end of the one who was refused.
    lab.finish(guest, expected="make_send_cqe: non-flush error")
