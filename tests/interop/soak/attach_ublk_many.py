"""`ironside` by the ublk driver: 100 rounds of attach and detach, with nothing left."""

import attach_ublk


def run(lab):
    attach_ublk.run(lab, rounds=100)
