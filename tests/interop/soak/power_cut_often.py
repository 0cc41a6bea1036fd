"""Twenty power cuts; see power_cut."""

import power_cut


def run(lab):
    power_cut.run(lab, cuts=20)
