"""Debian's own kernel, older than the one from backports: the smoke test."""

import smoke


def run(lab):
    smoke.run(lab, suite="own", queues=2)
