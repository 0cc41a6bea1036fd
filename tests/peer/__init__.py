"""An NVMe/RDMA host over iWARP in plain Python, which shares no code with Ironside and so can judge it."""
