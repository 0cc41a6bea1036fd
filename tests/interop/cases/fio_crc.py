"""fio as before, with MPA checksums."""

import fio


def run(lab):
    # The other half of the jobs meets each medium.
    fio.run(lab, siw="siw-crc", crc="peer", jobs=fio.JOBS[::-1][1:])
