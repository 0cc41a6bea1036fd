"""Control: kernel initiator against kernel target, both over siw in one guest. If this fails, the guest is to blame."""


def run(lab):
    lab.guest(
        """
        network
        must rdma link add siw1 type siw netdev lo
        kernel_target nqn.2026-01.org.example:control 10.0.2.15 4420
        connect 10.0.2.15 4420 nqn.2026-01.org.example:control 1
        exercise "$device"
        disconnect nqn.2026-01.org.example:control
        """
    )
