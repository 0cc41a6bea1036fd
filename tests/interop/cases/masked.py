"""Two hosts see different namespaces of one subsystem, changed live; one write protects, over a restart; one is removed."""

import signal

from peer.target import NQN, free_port

# Linux says that paths are two devices here, what it was refused, and what of a target that goes, comes, and sends a host away.
EXPECTED = (
    r"multipathing not supported|shared namespace|critical|Buffer I/O error|callbacks suppressed|I/O error, dev nvme"
    r"|nvme nvme\d: |nvme\d\w*: |nvme_rdma|cm_id|siw"
)


def run(lab):
    port, config = free_port(), lab.place / "target.toml"
    hosts = [f"nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000000{number}" for number in (1, 2)]
    serve(lab, config, port, hosts, hosts[0])
    with lab.target(config=config, port=port) as target:
        guest = lab.start_guest(
            """
            must modprobe nvme_core multipath=N
            network
            host() {
                id=00000000-0000-4000-8000-00000000000$1
                echo "transport=rdma,traddr=$ADDRESS,trsvcid=$PORT,nqn=$NQN,nr_io_queues=1,reconnect_delay=1,hostid=$id,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id" > /tmp/options
                must dd if=/tmp/options of=/dev/nvme-fabrics bs=4096
                wait_until "[ -b \\"\\$(of $2 1)\\" ]"
            }
            # Devices are numbered as they are found: of CONTROLLER NSID.
            of() {
                for each in /sys/class/nvme/nvme$1/nvme$1n*; do
                    [ "$(cat "$each/nsid" 2>/dev/null)" = "$2" ] && echo "/dev/${each##*/}"
                done
            }
            writes() { dd if=/dev/urandom of="$1" bs=4096 count=1 oflag=direct; }

            step "each host sees its own"
            host 1 0
            host 2 1
            wait_until '[ -b "$(of 0 2)" ]'
            [ -z "$(of 1 2)" ] || fail "the second host has a namespace which is not for it"
            keep first nvme list-ns /dev/nvme0 -o json
            keep second nvme list-ns /dev/nvme1 -o json
            must_fail nvme ns-descs /dev/nvme1 -n 2
            step "namespace 2 is for both"
            wait_until '[ -b "$(of 1 2)" ]'
            must writes "$(of 1 2)"
            must writes "$(of 0 2)"
            step "namespace 2 is for the second"
            wait_until '[ -z "$(of 0 2)" ]'
            must writes "$(of 1 2)"
            must writes "$(of 0 1)"

            step "protect"
            a=$(of 0 1) b=$(of 1 1)
            both_read_only() { [ "$(blockdev --getro $a)$(blockdev --getro $b)" = "$1$1" ]; }
            refused() {
                must_fail writes "$1"
                must_fail nvme write "$1" -s 0 -c 0 -z 4096 -d /dev/zero
                says '(0x.020)'
            }
            must nvme set-feature /dev/nvme0 -n 1 -f 0x84 --value=1
            wait_until 'both_read_only 1'
            must nvme get-feature /dev/nvme1 -n 1 -f 0x84
            says "value:0x0*1$"
            refused $a
            refused $b
            must dd if=$b of=/dev/null bs=4096 count=1 iflag=direct
            must writes "$(of 1 2)"
            step "restart"
            until_released restarted
            wait_until '[ "$(cat /sys/class/nvme/nvme0/state)$(cat /sys/class/nvme/nvme1/state)" = livelive ]'
            both_read_only 1 || fail "the restart ended the protection"
            refused $b
            must nvme reset /dev/nvme0
            both_read_only 1 || fail "a reset ended the protection"
            must nvme set-feature /dev/nvme1 -n 1 -f 0x84 --value=0
            wait_until 'both_read_only 0'
            must writes $a
            must writes $b

            step "remove a host"
            wait_until '[ ! -e /sys/class/nvme/nvme0 ]'
            must writes "$(of 1 1)"
            must writes "$(of 1 2)"
            must nvme disconnect -n "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=port,
            NQN=NQN,
        )
        guest.wait_step("namespace 2 is for both")
        change(target, lab, config, port, hosts, *hosts)
        guest.wait_step("namespace 2 is for the second")
        change(target, lab, config, port, hosts, hosts[1])
        guest.wait_step("restart")
        target.crash()
    with lab.target(config=config, port=port) as target:
        guest.release("restarted")
        guest.wait_step("remove a host")
        change(target, lab, config, port, hosts[1:], hosts[1])
        lab.finish(guest, expected=EXPECTED)
    seen = [[one["nsid"] for one in guest.json(name)["nsid_list"]] for name in ("first", "second")]
    assert seen == [[1, 2], [1]], seen


def change(target, *what):
    serve(*what)
    target.process.send_signal(signal.SIGHUP)


def serve(lab, config, port, hosts, *seen_by):
    """Writes the configuration in which namespace 2 is for the hosts `seen_by` alone."""
    text = f'listen = ["127.0.0.1:{port}"]\nstate-dir = "{lab.place / "state"}"\n[[subsystem]]\nnqn = "{NQN}"\n'
    text += f"allow-hosts = {hosts}\n"
    for number, keys in [(1, ""), (2, f"allow-hosts = {list(seen_by)}\n")]:
        text += f'[[subsystem.namespace]]\npath = "{lab.place / f"volume-{number}"}"\nsize = "64MiB"\nlba = 4096\n{keys}'
    config.write_text(text)
