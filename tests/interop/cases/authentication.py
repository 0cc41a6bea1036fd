"""DH-HMAC-CHAP: the kernel's host against our target, with every hash and several groups, both ways, with wrong keys, and again while in use."""

import subprocess

from peer.target import free_port

HOST = "nqn.2014-08.org.nvmexpress:uuid:0c8d7b9a-3b1e-4c39-8a55-0e51b2fb3d10"
PREFIX = "nqn.2014-08.org.example:"
# Each a subsystem of its own: hash, group.
AGREED = [("sha256", "null"), ("sha384", "ffdhe2048"), ("sha512", "ffdhe3072")]


def make_key(lab, name, hmac):
    path = lab.place / name
    subprocess.run([lab.programs["ironside"], "gen-dhchap-key", "-m", str(hmac), "-f", path], check=True)
    return path, path.read_text().strip()


def run(lab):
    port = free_port()
    host_file, host = make_key(lab, "host.key", 1)
    controller_file, controller = make_key(lab, "controller.key", 3)
    _, other = make_key(lab, "other.key", 2)
    text = f'listen = ["127.0.0.1:{port}"]\n'
    for hash_name, group in AGREED:
        text += f"""
[[subsystem]]
nqn = "{PREFIX}{hash_name}-{group}"
namespace = [{{ ram = "16MiB" }}]
[[subsystem.host]]
nqn = "{HOST}"
key-file = "{host_file}"
controller-key-file = "{controller_file}"
hashes = ["{hash_name}"]
groups = ["{group}"]
"""
    config = lab.place / "target.toml"
    config.write_text(text)
    with lab.target(config=config) as target:
        guest = lab.start_guest(
            """
            network
            attempt() { must_fail nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -i 1 -q "$HOST" "$@"; }
            for agreed in $AGREED; do
                step "both ways with $agreed"
                connect "$ADDRESS" "$PORT" "$PREFIX$agreed" 2 -q "$HOST" -S "$KEY" -C "$CONTROLLER"
                kernel_says "qid 0: authenticated with hash hmac(${agreed%-*}) dhgroup ${agreed#*-}"
                write_read_compare "$device" 65536
                disconnect "$PREFIX$agreed"
            done
            step "one way"
            connect "$ADDRESS" "$PORT" "${PREFIX}sha256-null" 1 -q "$HOST" -S "$KEY"
            disconnect "${PREFIX}sha256-null"
            step "no key"
            attempt -n "${PREFIX}sha256-null"
            step "a wrong key"
            kernel_log_from_here
            attempt -n "${PREFIX}sha384-ffdhe2048" -S "$OTHER"
            kernel_says "qid 0: authentication failed"
            step "a wrong key of the controller"
            kernel_log_from_here
            attempt -n "${PREFIX}sha384-ffdhe2048" -S "$KEY" -C "$OTHER"
            kernel_says "controller authentication failed"
            connect "$ADDRESS" "$PORT" "${PREFIX}sha384-ffdhe2048" 2 -q "$HOST" -S "$KEY" -C "$CONTROLLER"
            write_slowly "$device" 8m & writing=$!
            wait_until 'has_written "$device" 100'
            step "in use"
            until_released rekeyed
            step "authenticate again with another key"
            kernel_log_from_here
            echo "$OTHER" > "/sys/class/nvme/$(controller)/dhchap_secret" || fail "the kernel does not take another key"
            kernel_says "qid 0: authenticated with hash"
            wait $writing || { cat /tmp/fio-said; fail "I/O failed meanwhile"; }
            [ "$(state)" = live ] || fail "it is $(state)"
            step "again"
            until_released over
            disconnect "${PREFIX}sha384-ffdhe2048"
            """,
            ADDRESS=lab.HOST,
            PORT=port,
            HOST=HOST,
            PREFIX=PREFIX,
            AGREED=" ".join("-".join(agreed) for agreed in AGREED),
            KEY=host,
            CONTROLLER=controller,
            OTHER=other,
        )
        guest.wait_step("in use")
        host_file.write_text(other + "\n")
        target.process.send_signal(1)
        guest.wait_until(lambda: "other keys for hosts" in whole(target), "the target did not take the other key")
        guest.release("rekeyed")
        guest.wait_step(": again")
        guest.wait_until(lambda: "again=true" in whole(target), "the target did not see it")
        guest.release("over")
        lab.finish(guest, expected=r"nvme nvme\d: (qid \d|authentication|failed|no key|Connect|rdma)")
        assert "do not have the same key" in whole(target), target.said()


def whole(target):
    return target.log.read_text(errors="replace")
