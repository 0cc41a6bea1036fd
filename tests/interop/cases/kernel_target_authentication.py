"""DH-HMAC-CHAP: our initiator against the kernel's target, with every group the case names, and with other keys under I/O."""

import os
import shutil
import subprocess
from types import SimpleNamespace

from peer.initiator import Attached
from peer.target import free_port

NQN = "nqn.2026-01.org.example:kernel"
HOST = "nqn.2014-08.org.nvmexpress:uuid:0c8d7b9a-3b1e-4c39-8a55-0e51b2fb3d10"


def run(lab):
    ironside = lab.programs["ironside"]
    files = {}
    for name, hmac in (("host", 1), ("controller", 2), ("other", 3)):
        files[name] = lab.place / f"{name}.key"
        subprocess.run([ironside, "gen-dhchap-key", "-m", str(hmac), "-f", files[name]], check=True)
    port = free_port()
    guest = lab.start_guest(
        """
        network
        kernel_target "$NQN" 10.0.2.15 4420
        echo 0 > "$root/subsystems/$NQN/attr_allow_any_host"
        of_host="$root/hosts/$HOST"
        mkdir "$of_host"
        echo -n "$KEY" > "$of_host/dhchap_key"
        echo -n "$CONTROLLER" > "$of_host/dhchap_ctrl_key"
        ln -s "$of_host" "$root/subsystems/$NQN/allowed_hosts/"
        for agreed in "sha256 null" "sha384 ffdhe2048" "sha512 ffdhe3072"; do
            echo -n "hmac(${agreed% *})" > "$of_host/dhchap_hash" || fail "hash"
            echo -n "${agreed#* }" > "$of_host/dhchap_dhgroup" || fail "group"
            step "serving $agreed"
            until_released "after-${agreed% *}"
        done
        echo -n "hmac(sha256)" > "$of_host/dhchap_hash"
        echo -n null > "$of_host/dhchap_dhgroup"
        step "serving under I/O"
        until_released attached
        echo -n "$OTHER" > "$of_host/dhchap_key"
        step "another key"
        until_released rekeyed
        """,
        forward=(port, 4420),
        NQN=NQN,
        HOST=HOST,
        KEY=files["host"].read_text().strip(),
        CONTROLLER=files["controller"].read_text().strip(),
        OTHER=files["other"].read_text().strip(),
    )

    def ask(*secrets):
        where = ["-a", "127.0.0.1", "-s", str(port), "-n", NQN, "-q", HOST]
        command = [ironside, "id-ctrl", *where, *secrets]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    good, both = ["--dhchap-secret-file", files["host"]], ["--dhchap-ctrl-secret-file", files["controller"]]
    for hash_name in ("sha256", "sha384", "sha512"):
        guest.wait_step(f"serving {hash_name}")
        for secrets in (good, good + both):
            status, said = ask(*secrets)
            assert status == 0 and "NVME Identify Controller" in said, said
        if hash_name == "sha256":
            status, said = ask()
            assert status == 4 and "--dhchap-secret-file" in said, said
            status, said = ask("--dhchap-secret-file", files["other"])
            # The kernel hangs up behind its answer, which gets lost where its driver is slow to send.
            assert status in (3, 4) and "do not have the same key" in said, said
            status, said = ask(*good, "--dhchap-ctrl-secret-file", files["other"])
            assert status == 4 and "does not know the controller secret" in said, said
        guest.release(f"after-{hash_name}")
    another_key_under_io(lab, guest, port, files)
    status, said = ask(*good)
    assert status in (3, 4) and "do not have the same key" in said, said
    guest.release("rekeyed")
    lab.finish(guest, expected=r"nvmet|nvme")


def another_key_under_io(lab, guest, port, files):
    """The target gets another key for this host while it reads and writes, and then the host."""
    key = lab.place / "attached.key"
    shutil.copy(files["host"], key)
    target = SimpleNamespace(nqn=NQN, address=("127.0.0.1", port), port=port)
    secrets = ["--dhchap-secret-file", key, "--dhchap-ctrl-secret-file", files["controller"]]
    source, back = lab.place / "source", lab.place / "back"
    source.write_bytes(os.urandom(8 << 20))
    guest.wait_step("serving under I/O")
    with Attached(lab.programs["ironside"], target, "--via", "nbd", "-q", HOST, *secrets) as attached:
        uri = f"nbd+unix:///?socket={attached.device}"
        writing = subprocess.Popen(["nbdcopy", source, uri])
        guest.release("attached")
        guest.wait_step("another key")
        shutil.copy(files["other"], key)
        name = attached.device.split("/")[-2]
        said = attached.run("rekey", name)
        assert "2 queues have authenticated again" in said or "goes on" in said, said
        assert writing.wait() == 0, "writing failed meanwhile"
        # The target is larger than what was written.
        reading = subprocess.run(["nbdcopy", uri, back])
        assert reading.returncode == 0 and back.read_bytes()[: 8 << 20] == source.read_bytes(), "other bytes"
        (device,) = (device for device in attached.list() if device["DevicePath"] == attached.device)
        assert device["State"] == "live" and device["Reason"] is None, device
