"""fio as in the core, each job on each medium, with MPA checksums and without."""

import fio


def run(lab):
    twice = tuple(job for job in fio.JOBS for _ in range(2))
    for siw, crc in (("siw", "off"), ("siw-crc", "peer")):
        fio.run(lab, siw=siw, crc=crc, jobs=twice)
