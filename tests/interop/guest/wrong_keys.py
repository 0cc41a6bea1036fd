"""A target which misuses the key of the first command it gets, by an adapter: wrong_keys.py ADDRESS PORT MISUSE.

Says what the adapter of the host answered, and fails unless that refused. Needs pyverbs, which Debian has for its own Python.
"""

import sys

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.qp import QPCap, QPInitAttr


def main(address, port, misuse):
    attributes = QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4))
    where = AddrInfo(src=address, src_service=port, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    listener = CMID(creator=where, qp_init_attr=attributes)
    listener.listen()
    print("ready", flush=True)
    host = listener.get_request()
    capsules = [host.reg_msgs(64) for _ in range(2)]
    for capsule in capsules:
        host.post_recv(capsule)
    host.accept(ConnParam(resources=0, depth=1))
    host.get_recv_comp()
    connect = capsules[0].read(64, 0)
    at, length, key = (int.from_bytes(connect[low:high], "little") for low, high in ((24, 32), (32, 35), (35, 39)))
    buffer = host.reg_msgs(length + 16)

    def do(post, at, length, key):
        post(buffer, length, at, key, e.IBV_SEND_SIGNALED)
        return host.get_send_comp().status

    assert do(host.post_read, at, length, key) == e.IBV_WC_SUCCESS, "the data of Connect is there to be read"
    if misuse == "another-key":
        status = do(host.post_read, at, length, key ^ 1)
    elif misuse == "the-other-direction":
        status = do(host.post_write, at, 8, key)
    elif misuse == "beyond-its-bounds":
        status = do(host.post_read, at + length - 8, 16, key)
    elif misuse == "after-its-command":
        response = host.reg_msgs(16)
        response.write(bytes((1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)) + connect[2:4] + bytes(2), 16)
        host.post_send(response, e.IBV_SEND_SIGNALED)
        host.get_send_comp()
        # The host's next command comes once the key of this one is invalid.
        host.get_recv_comp()
        status = do(host.post_read, at, length, key)
    else:
        sys.exit(f"{misuse}: no such misuse")
    print(f"{misuse}: status {status}", flush=True)
    assert status == e.IBV_WC_REM_ACCESS_ERR, "the host's adapter has let it through"


if __name__ == "__main__":
    main(*sys.argv[1:])
