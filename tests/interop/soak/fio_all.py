"""fio as in the core, each job on each medium, with MPA checksums and without."""

import fio


def run(lab):
    twice = tuple(job for job in fio.JOBS for _ in range(2))
    for siw in ("siw", "siw-crc"):
        fio.run(lab, siw=siw, jobs=twice)
