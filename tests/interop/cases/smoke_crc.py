"""The same with MPA checksums, which this build of siw asks for."""

import smoke


def run(lab):
    smoke.run(lab, siw="siw-crc")
