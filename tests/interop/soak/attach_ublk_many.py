"""`ironside` by the ublk driver: 1,000 rounds of attach and detach, with nothing left.

Emulated they take two to three hours. IRONSIDE_ROUNDS is another number of rounds.
"""

import os

import attach_ublk


def run(lab):
    attach_ublk.run(lab, rounds=int(os.environ.get("IRONSIDE_ROUNDS", 1000)))
