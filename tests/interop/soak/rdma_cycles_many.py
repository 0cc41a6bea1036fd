"""A hundred connects and disconnects over an adapter, its resources flat; see rdma_kernel_host."""

import rdma_kernel_host


def run(lab):
    rdma_kernel_host.run(lab, cycles=100)
