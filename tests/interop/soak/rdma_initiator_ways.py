"""`ironside` by a RoCE adapter in software (rxe) against the kernel's target, lending by the pool's key and dynamically."""

import rdma_initiator


def run(lab):
    rdma_initiator.run(lab, ways=("pool", "dynamic"))
