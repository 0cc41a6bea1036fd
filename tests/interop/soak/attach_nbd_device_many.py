"""`ironside` by the kernel's NBD client: 100 rounds of attach and detach, with nothing left."""

import attach_nbd_device


def run(lab):
    attach_nbd_device.run(lab, rounds=100)
