"""A hundred connects and disconnects; see cycles."""

import cycles


def run(lab):
    cycles.run(lab, cycles=100)
