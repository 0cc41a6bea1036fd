"""What discovery, Identify, the log pages and the features tell nvme-cli, field by field."""

import re

UUIDS = ("1b9ee4f3-6d5c-4ed1-8ee7-2f1e5f2f8a01", "1b9ee4f3-6d5c-4ed1-8ee7-2f1e5f2f8a02")
MIB = 1 << 20


def run(lab):
    volume = f"{lab.place}/volume,size=96MiB,lba=4096,read-only,uuid={UUIDS[1]}"
    (lab.place / "volume").touch()
    (lab.place / "volume").open("r+b").truncate(96 * MIB)
    memory = f"ram:64MiB,lba=512,uuid={UUIDS[0]}"
    with lab.target("--namespace", memory, "--namespace", volume, "--serial", "INTEROP-1") as target:
        guest = lab.guest(
            """
            network
            step "discover"
            keep discover.json nvme discover -t rdma -a "$ADDRESS" -s "$PORT" -o json
            connect "$ADDRESS" "$PORT" "$NQN" 1 --keep-alive-tmo=7
            readonly=$(namespace 2)
            controller=/dev/$(controller)
            step "identify"
            keep list.json nvme list -v -o json
            keep id-ctrl.json nvme id-ctrl "$controller" -o json
            keep id-ctrl.txt nvme id-ctrl -H "$controller"
            for number in 1 2; do
                keep id-ns-$number.json nvme id-ns "$controller" -n $number -o json
                keep ns-descs-$number.json nvme ns-descs "$controller" -n $number -o json
            done
            keep id-ns.txt nvme id-ns -H "$device"
            keep list-ns.json nvme list-ns "$controller" -o json
            must nvme cmdset-ind-id-ns "$controller" -n 1
            must nvme nvm-id-ctrl "$controller"
            step "log pages"
            keep supported.txt nvme supported-log-pages "$controller"
            keep errors-before.json nvme error-log "$controller" -o json
            must_fail nvme get-log "$controller" --log-id=0xc0 --log-len=512
            says '(0x.109)'
            must_fail nvme get-log "$controller" --log-id=2 --log-len=512 --lpo=1024
            says '(0x.002)'
            must dd if="$device" of=/dev/null bs=64k count=16 iflag=direct
            must dd if=/dev/zero of="$device" bs=64k count=24 oflag=direct
            must_fail nvme read "$device" -s 131072 -c 0 -z 512 -d /tmp/read
            says '(0x.080)'
            keep errors.json nvme error-log "$controller" -o json
            keep smart.json nvme smart-log "$controller" -o json
            keep changed.txt nvme changed-ns-list-log "$controller"
            # Without --csi nvme-cli 2.3 looks for a register which only PCI has, and prints nothing.
            keep effects.txt nvme effects-log "$controller" --csi=0
            keep fw.json nvme fw-log "$controller" -o json
            step "features"
            keep features.txt sh -c "for id in 6 7 0xb 0xf; do nvme get-feature $controller -f \\$id; done"
            step "a read-only namespace refuses writes"
            [ "$(blockdev --getro "$readonly")" = 1 ] || fail "$readonly is not read-only"
            must dd if="$readonly" of=/dev/null bs=1M count=4 iflag=direct
            disconnect "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
        )
        check_discovery(guest, target)
        check_identify(guest, target)
        check_logs(guest)


def check_discovery(guest, target):
    itself, record = guest.json("discover.json")["records"]
    assert itself["subtype"] == "current discovery subsystem", itself
    assert (record["subnqn"], record["trsvcid"], record["trtype"]) == (target.nqn, str(target.port), "rdma"), record
    assert (record["adrfam"], record["subtype"], record["rdma_prtype"]) == ("ipv4", "nvme subsystem", "iwarp"), record


def check_identify(guest, target):
    controller = guest.json("id-ctrl.json")
    assert controller["sn"].strip() == "INTEROP-1" and controller["mn"].strip() == "Ironside", controller
    assert controller["subnqn"] == target.nqn and controller["kas"] > 0 and controller["cntrltype"] == 1, controller
    # Entries of 64 and 16 bytes, 4 KiB in a capsule, one SGL descriptor, transfers of 1 MiB.
    assert (controller["sqes"], controller["cqes"]) == (0x66, 0x44), controller
    assert (controller["ioccsz"], controller["iorcsz"], controller["msdbd"], controller["mdts"]) == (260, 1, 1, 8), controller
    text = guest.said("id-ctrl.txt")
    for line in ("Keyed SGL Data Block descriptor Supported", "Volatile Write Cache Present", "Write Zeroes Supported"):
        assert line in text, f"id-ctrl -H does not say {line!r}"
    sizes = [(64 * MIB, 512), (96 * MIB, 4096)]
    for number, ((size, block), uuid) in enumerate(zip(sizes, UUIDS), 1):
        namespace = guest.json(f"id-ns-{number}.json")
        assert namespace["nsze"] == namespace["ncap"] == size // block, namespace
        assert 1 << namespace["lbafs"][namespace["flbas"] & 15]["ds"] == block, namespace
        assert namespace["nguid"] == uuid.replace("-", ""), namespace
        assert uuid in guest.said(f"ns-descs-{number}.json"), guest.said(f"ns-descs-{number}.json")
        assert namespace["nsattr"] == (number == 2), namespace
    assert "in use" in guest.said("id-ns.txt")
    assert [entry["nsid"] for entry in guest.json("list-ns.json")["nsid_list"]] == [1, 2]
    (subsystem,) = guest.json("list.json")["Devices"][0]["Subsystems"]
    (listed,) = subsystem["Controllers"]
    assert subsystem["SubsystemNQN"] == target.nqn and listed["Transport"] == "rdma", subsystem
    assert {one["PhysicalSize"] for one in subsystem["Namespaces"]} == {64 * MIB, 96 * MIB}, subsystem


def check_logs(guest):
    for page in (0, 1, 2, 3, 4, 5):
        assert f"LID {page:#x}" in guest.said("supported.txt"), guest.said("supported.txt")
    before = guest.json("errors-before.json")["errors"]
    assert not any(entry["error_count"] for entry in before), before
    # Newest first: a read past the end, and before it an offset past the end of a page and a page nobody knows.
    read, offset, page = guest.json("errors.json")["errors"][:3]
    assert [entry["error_count"] for entry in (read, offset, page)] == [3, 2, 1], (read, offset, page)
    assert (page["sqid"], page["status_field"] & 0x7FF) == (0, 0x109), page
    assert (offset["sqid"], offset["status_field"] & 0x7FF) == (0, 0x002), offset
    assert (read["sqid"], read["status_field"] & 0x7FF, read["nsid"]) == (1, 0x080, 1), read
    smart = guest.json("smart.json")
    assert int(smart["num_err_log_entries"]) == 3, smart
    assert int(smart["host_read_commands"]) >= 16 and int(smart["host_write_commands"]) == 24, smart
    # 1 MiB read and 1.5 MiB written, in thousands of 512 bytes, and what the kernel read when it looked for partitions.
    assert int(smart["data_units_read"]) >= 3 and int(smart["data_units_written"]) == 4, smart
    assert (smart["critical_warning"], smart["avail_spare"], int(smart["media_errors"])) == (0, 100, 0), smart
    for opcode in ("Flush", "Write", "Read", "Compare", "Write Zeroes", "Dataset Management", "Verify"):
        assert f"[{opcode} " in guest.said("effects.txt"), guest.said("effects.txt")
    assert guest.json("fw.json")["nvme0"]["Active Firmware Slot (afi)"] == 1, guest.said("fw.json")
    assert not guest.said("changed.txt").strip(), guest.said("changed.txt")
    features = guest.said("features.txt")
    # The write cache is on, events of namespaces and of ways to them are, and the host is believed dead after seven seconds.
    for id, value in (("0x06", "0x00000001"), ("0x07", "00000000"), ("0x0b", "0x00000900"), ("0x0f", "0x00001b58")):
        assert re.search(rf"get-feature:{id} .*value:{value}$", features, re.M), features
