"""The target is killed twenty times under one run of fio, whose writes are all there at the end."""

import restart


def run(lab):
    restart.run(lab, kills=20)
