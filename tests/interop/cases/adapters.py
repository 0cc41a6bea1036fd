"""The target finds a kernel's RDMA adapter through libibverbs, and says what it can do."""

import json


def run(lab):
    guest = lab.start_guest(
        """
        step "before there is an adapter"
        keep none "$TARGET" devices -o json
        network
        step "with one"
        keep devices "$TARGET" devices -o json
        keep words "$TARGET" devices
        """,
        programs=("target",),
    )
    lab.finish(guest)
    none = guest.json("none")
    assert none["devices"] == [] and none["why_none"], none
    devices = guest.json("devices")["devices"]
    assert [device["name"] for device in devices] == ["siw0"], devices
    (siw,) = devices
    assert siw["transport"] == "iWARP" and "error" not in siw, json.dumps(siw)
    assert siw["limits"]["queue_pairs"] > 0 and siw["limits"]["memory_windows"] == 0, siw["limits"]
    (port,) = siw["ports"]
    assert port["state"] == "active" and port["gids"], port
    assert guest.said("words").startswith("siw0: iWARP, node GUID "), guest.said("words")
