"""Two hosts of one guest share a namespace by reservations, one preempts the other, and the target's restart changes nothing."""

from peer.target import free_port

# Paths are two devices here. Linux says what it was refused, and what of a target that goes and comes.
EXPECTED = (
    r"reservation conflict error|critical nexus error|multipathing not supported|shared namespace|Buffer I/O error"
    r"|callbacks suppressed|nvme nvme\d: |nvme\d\w*: |nvme_rdma|I/O error, dev nvme|cm_id|siw"
)


def run(lab):
    port = free_port()
    namespace, state = f"{lab.place}/volume,size=64MiB,lba=4096", ("--state-dir", str(lab.place / "state"))
    with lab.target("--namespace", namespace, *state, port=port) as target:
        guest = lab.start_guest(
            """
            must modprobe nvme_core multipath=N
            network
            host() {
                id=00000000-0000-4000-8000-00000000000$1
                # nvme-cli takes a second host for the first one connecting again; the kernel does not.
                echo "transport=rdma,traddr=$ADDRESS,trsvcid=$PORT,nqn=$NQN,nr_io_queues=1,reconnect_delay=1,ctrl_loss_tmo=1800,hostid=$id,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id" > /tmp/options
                must dd if=/tmp/options of=/dev/nvme-fabrics bs=4096
                wait_until "[ -b /dev/nvme$2n1 ]"
            }
            step "two hosts"
            host 1 0
            host 2 1
            a=/dev/nvme0n1 b=/dev/nvme1n1
            writes() { dd if=/dev/urandom of="$1" bs=4096 count=1 oflag=direct; }
            reads() { dd if="$1" of=/dev/null bs=4096 count=1 iflag=direct; }

            step "register and reserve, by the kernel's own interface and by nvme-cli"
            pr() {
                python3 -c 'import fcntl, struct, sys
number, form, *values = sys.argv[2:]
with open(sys.argv[1], "rb+", buffering=0) as device:
    status = fcntl.ioctl(device, int(number, 0), bytearray(struct.pack(form, *(int(value) for value in values))))
sys.exit(f"refused: {status:#x}" if status else 0)' "$@"
            }
            must pr $a 0x401870C8 QQII 0 10 0 0
            must pr $a 0x401070C9 QII 10 1 0
            must nvme resv-register $b -n 1 --nrkey=20 --rrega=0 --cptpl=3
            must writes $a
            must reads $b
            must_fail writes $b
            must_fail nvme resv-acquire $b -n 1 --crkey=20 --rtype=1 --racqa=0
            says "[Cc]onflict\|CONFLICT"
            keep report nvme resv-report $b -n 1 --eds -o json

            step "preempt and abort, while the other writes"
            (while writes $a; do :; done) > /tmp/writer 2>&1 &
            writer=$!
            must nvme resv-acquire $b -n 1 --crkey=20 --prkey=10 --rtype=1 --racqa=2
            must writes $b
            must dd if=/dev/zero of=$b bs=4096 count=1 oflag=direct
            wait $writer
            must_fail writes $a
            reads_as_zeros $b 0 1

            step "restart"
            until_released restarted
            wait_until '[ "$(cat /sys/class/nvme/nvme0/state)$(cat /sys/class/nvme/nvme1/state)" = livelive ]'
            must_fail writes $a
            must writes $b
            must_fail nvme copy $a -n 1 --sdlba=800 --slbs=0 --blocks=7
            must nvme copy $b -n 1 --sdlba=800 --slbs=0,64 --blocks=7,7
            # What was written and copied by other devices is not in this one's cache.
            must blockdev --flushbufs $b
            must cmp -n 32768 -i 0:3276800 $b $b
            must cmp -n 32768 -i 262144:3309568 $b $b
            keep report_after nvme resv-report $b -n 1 --eds -o json

            step "release"
            must nvme resv-release $b -n 1 --crkey=20 --rtype=1 --rrela=0
            must writes $a
            must nvme disconnect -n "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=port,
            NQN=target.nqn,
        )
        guest.wait_step("restart")
        target.crash()
    with lab.target("--namespace", namespace, *state, port=port):
        guest.release("restarted")
        lab.finish(guest, expected=EXPECTED)
    for name, registrants in [("report", 2), ("report_after", 1)]:
        report = guest.json(name)
        assert (report["rtype"], report["regctl"], report["ptpls"]) == (1, registrants, 1), report
