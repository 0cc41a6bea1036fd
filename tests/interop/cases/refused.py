"""A wrong NQN, a host not allowed, nobody there, a queue too many: each is refused with the reason the kernel prints."""

from peer import nvme
from peer.target import free_port

ALLOWED = "nqn.2014-08.org.nvmexpress:uuid:0c8d7b9a-3b1e-4c39-8a55-0e51b2fb3d10"
STRANGER = "nqn.2014-08.org.nvmexpress:uuid:0c8d7b9a-3b1e-4c39-8a55-0e51b2fb3d11"
QUEUES_GRANTED = 64


def run(lab):
    with lab.target("--namespace", "ram:64MiB", "--allow-host", ALLOWED, any_host=False) as target:
        lab.guest(
            """
            network
            attempt() { must_fail nvme connect -t rdma -a "$ADDRESS" -i 1 "$@"; }
            step "a wrong NQN"
            attempt -s "$PORT" -n nqn.2026-01.org.example:nothing -q "$ALLOWED"
            kernel_says 'Connect Invalid Data Parameter, subsysnqn "nqn.2026-01.org.example:nothing"'
            step "a host not allowed"
            attempt -s "$PORT" -n "$NQN" -q "$STRANGER"
            kernel_says "Connect for subsystem $NQN is not allowed, hostnqn: $STRANGER"
            step "nobody there"
            attempt -s "$NOBODY" -n "$NQN" -q "$ALLOWED"
            kernel_says 'rdma connection establishment failed'
            [ -z "$(ls /sys/class/nvme)" ] || fail "something was connected"
            step "the host on the list"
            connect "$ADDRESS" "$PORT" "$NQN" 1 -q "$ALLOWED"
            disconnect "$NQN"
            """,
            expected=r"nvme nvme\d: (Connect|rdma conn|rdma_connect|failed to connect queue)",
            ADDRESS=lab.HOST,
            PORT=target.port,
            NOBODY=free_port(),
            NQN=target.nqn,
            ALLOWED=ALLOWED,
            STRANGER=STRANGER,
        )
        assert "Connect Invalid Host" in target.said() and STRANGER in target.said(), target.said()
        one_queue_too_many(target)


def one_queue_too_many(target):
    """A kernel asks how many queues it may have and keeps to it, so here speaks a host that does not."""
    with nvme.Host(target.address, target.nqn, queues=QUEUES_GRANTED, depth=4, host_nqn=ALLOWED) as host:
        qid = QUEUES_GRANTED + 1
        queue = nvme.Queue(target.address, qid, 4, host.cntlid)
        host.io.append(queue)
        refused = queue.connect(host, host.cntlid)
        # Connect Invalid Parameters, at the command's byte 42: the queue identifier.
        assert nvme.status(refused) == (1, 0x82) and refused.result == 42, refused
        nvme.succeed(host.io[0].execute(nvme.FLUSH, 1))
