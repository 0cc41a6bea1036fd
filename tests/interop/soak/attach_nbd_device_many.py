"""`ironside` by the kernel's NBD client: 1,000 rounds of attach and detach, with nothing left.

Emulated they take two to three hours. IRONSIDE_ROUNDS is another number of rounds.
"""

import os

import attach_nbd_device


def run(lab):
    attach_nbd_device.run(lab, rounds=int(os.environ.get("IRONSIDE_ROUNDS", 1000)))
