# What the guests' scripts share. A script is read by sh -c after this; any `fail` ends it.

step() { echo "== $(cut -d. -f1 /proc/uptime) s: $*"; }
fail() { echo "FAILED: $*"; exit 1; }
# Runs a command whose output matters only if it fails.
must() { "$@" > /tmp/said 2>&1 || { status=$?; cat /tmp/said; fail "$* (status $status)"; }; }
must_fail() { "$@" > /tmp/said 2>&1 && { cat /tmp/said; fail "$* succeeded"; }; true; }
says() { grep -q -e "$1" /tmp/said || { cat /tmp/said; fail "nothing said \"$1\""; }; }
# keep NAME COMMAND…: what it prints lies in /out/NAME afterwards, for the case to judge.
keep() { name=$1; shift; must "$@"; cp /tmp/said "/out/$name"; }

# wait_until SHELL-CONDITION: waits for what must come, however slow the machine; `fail`s after ten minutes of guest's time.
wait_until() {
    end=$(($(cut -d. -f1 /proc/uptime) + 600))
    while ! eval "$1"; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt $end ] || { dmesg | tail -n 20; fail "in vain: $1"; }
        sleep 0.2
    done
}
# For a guest that serves the host: waits until the case has what it came for.
until_released() { wait_until "[ -e /out/${1:-released} ]"; }
# kernel_says PATTERN: the kernel's log has a line like that; kernel_log_from_here forgets what it said before.
kernel_log_from_here() { lines_before=$(dmesg | wc -l); }
kernel_says() { wait_until "dmesg | tail -n +\$((${lines_before:-0} + 1)) | grep -q -e '$1'"; }

# The card that reaches the host at 10.0.2.2, with software iWARP on it.
network() {
    step "load siw and join the network"
    modprobe -a virtio_net rdma_ucm nvme_rdma $(modinfo -F depends "/kernel/$SIW.ko" | tr , ' ') || fail "modules"
    insmod "/kernel/$SIW.ko" || fail "insmod $SIW.ko"
    card=$(ls /sys/class/net | grep -v lo | head -1)
    ip address add 10.0.2.15/24 dev "$card"
    ip link set "$card" up
    ip route add default via 10.0.2.2
    must rdma link add siw0 type siw netdev "$card"
}

# A network of this machine alone at 10.9.0.1, with RoCE in software on it. Its MTU has room for RDMA's largest.
roce() {
    step "load rxe"
    modprobe -a dummy rdma_rxe rdma_ucm nvme_rdma || fail "modules"
    ip link add roce type dummy
    ip link set roce mtu 9000 up
    ip address add 10.9.0.1/24 dev roce
    must rdma link add rxe0 type rxe netdev roce
}

# connect ADDRESS PORT NQN QUEUES [OPTION…]: sets $device to the block device of namespace 1.
connect() {
    address=$1 port=$2 nqn=$3 queues=$4
    shift 4
    step "connect with $queues I/O queues $*"
    must nvme connect -t rdma -a "$address" -s "$port" -n "$nqn" -i "$queues" "$@"
    device=$(namespace 1)
    [ -b "$device" ] || fail "connected, but no block device came"
}

# The block device of the namespace with this NSID, once it is there; devices are numbered in no certain order.
namespace() {
    for try in $(seq 600); do
        for found in $(blocks); do
            if [ "$(cat "/sys/block/$found/nsid" 2>/dev/null)" = "$1" ]; then echo "/dev/$found"; return; fi
        done
        sleep 0.1
    done
}
# The block devices of the subsystem last connected to.
blocks() {
    for found in /sys/block/nvme*; do
        if [ "$(cat "$found/device/subsysnqn" 2>/dev/null)" = "$nqn" ] && [ -b "/dev/${found##*/}" ]; then
            echo "${found##*/}"
        fi
    done
}
# The controller of the subsystem last connected to, such as nvme0, and its state.
controller() { for found in /sys/class/nvme/nvme*; do grep -qx "$nqn" "$found/subsysnqn" && echo "${found##*/}"; done; }
state() { cat "/sys/class/nvme/$(controller)/state"; }

disconnect() {
    must nvme disconnect -n "$1"
    says "disconnected 1 controller"
    [ -z "$(blocks)" ] || fail "the block device outlives its controller"
}

# Writes random bytes in one piece of each length in the list, reads them back directly and compares.
write_read_compare() {
    for length in $2; do
        must dd if=/dev/urandom of=/tmp/written bs="$length" count=1 iflag=fullblock
        must dd if=/tmp/written of="$1" bs="$length" count=1 seek=3 oflag=direct
        must dd if="$1" of=/tmp/read bs="$length" count=1 skip=3 iflag=direct
        must cmp /tmp/written /tmp/read
    done
}

# What `length` bytes at `offset` read as, compared with zeros.
reads_as_zeros() {
    must dd if="$1" of=/tmp/read bs=4096 skip="$2" count="$3" iflag=direct
    must cmp -n $(($3 * 4096)) /tmp/read /dev/zero
}

# Every kind of command a Linux host sends to a namespace.
exercise() {
    block=$(blockdev --getss "$1")
    step "identify"
    must nvme id-ctrl "$1"
    must nvme id-ns "$1"
    must nvme ns-descs "$1"
    must nvme smart-log "$1"
    step "write, read and compare from $block bytes to 1 MiB"
    write_read_compare "$1" "$block 4096 8192 16384 65536 131072 524288 1048576"
    step "flush, write zeroes, deallocate"
    must nvme flush "$1"
    must dd if=/dev/urandom of="$1" bs=64k count=1 oflag=direct
    must nvme write-zeroes "$1" -s 0 -c $((4096 / block - 1))
    reads_as_zeros "$1" 0 1
    must nvme dsm "$1" -d -s $((8192 / block)) -b $((4096 / block))
    must blkdiscard -o 1048576 -l 1048576 "$1"
    must blkdiscard -z -o 2097152 -l 1048576 "$1"
    reads_as_zeros "$1" 512 256
    step "fio with crc32c"
    verify_with_fio "$1" randrw 4k 4m 16
    verify_with_fio "$1" write 128k 8m 4
}

# What the kernel's own target on a RAM disk lacks: Compare, Verify, Copy, and the right refusal past the end.
exercise_the_rest() {
    step "compare and verify"
    must dd if=/dev/urandom of=/tmp/block bs=4096 count=1
    must dd if=/tmp/block of="$1" bs=4096 count=1 oflag=direct
    last=$((4096 / $(blockdev --getss "$1") - 1))
    must nvme compare "$1" -s 0 -c $last -z 4096 -d /tmp/block
    must_fail nvme compare "$1" -s 0 -c $last -z 4096 -d /dev/zero
    says '(0x.285)'
    must nvme verify "$1" -s 0 -c $last
    step "copy"
    blocks=$((4096 / $(blockdev --getss "$1")))
    must dd if=/dev/urandom of=/tmp/three bs=4096 count=3
    must dd if=/tmp/three of="$1" bs=4096 oflag=direct
    must nvme copy "$1" -d $((8 * blocks)) -s $((2 * blocks)),0 -b $last,$((2 * blocks - 1))
    must dd if="$1" of=/tmp/copied bs=4096 skip=8 count=3 iflag=direct
    { tail -c 4096 /tmp/three; head -c 8192 /tmp/three; } > /tmp/turned
    must cmp /tmp/turned /tmp/copied
    step "a read past the end is refused"
    end=$(blockdev --getsz "$1")
    must_fail nvme read "$1" -s $end -c $last -z 4096 -d /tmp/read
    says '(0x.080)'
}

verify_with_fio() {
    must fio --name=verify --filename="$1" --rw="$2" --bs="$3" --size="$4" --iodepth="$5" --ioengine=libaio --direct=1 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --randrepeat=1
}

# write_slowly DEVICE SIZE: writes for as long as half a megabyte a second takes, in the background of what disturbs it, and
# reads it all back. has_written DEVICE N: so many writes are done.
write_slowly() {
    fio --name=verify --filename="$1" --rw=randwrite --bs=4k --size="$2" --rate=,512k --ioengine=libaio --iodepth=8 \
        --direct=1 --verify=crc32c --do_verify=1 --verify_fatal=1 > /tmp/fio-said 2>&1 || { cat /tmp/fio-said; return 1; }
}
has_written() { [ "$(awk '{print $5}' "/sys/block/${1##*/}/stat")" -ge "$2" ]; }

# Our target in the guest, beside the guest's own drives: `serve OPTION…` until `stop_serving`, at $LISTEN.
serve() {
    step "serve $*"
    "$TARGET" serve --listen "${LISTEN:-10.0.2.15:4420}" --nqn "$NQN" --allow-any-host --state-dir /tmp/state "$@" > /out/target.log 2>&1 &
    serving=$!
    wait_until 'grep -q ^ready /out/target.log || ! kill -0 $serving'
    grep -q ^ready /out/target.log || { cat /out/target.log; fail "the target does not serve"; }
}
stop_serving() {
    kill $serving
    wait $serving || { cat /out/target.log; fail "the target ended with $?"; }
}
# The block device of the guest's own NVMe drive with this serial number, and how often it was told to flush (`flushes`).
drive() {
    wait_until "grep -qs '^$1 *\$' /sys/class/nvme/*/serial && [ -b /dev/\$(basename \$(dirname \$(grep -ls '^$1 *\$' /sys/class/nvme/*/serial)))n1 ]"
    echo "/dev/$(basename "$(dirname "$(grep -ls "^$1 *\$" /sys/class/nvme/*/serial)")")n1"
}
# How often it read or wrote, and how often all such drives have interrupted the guest's one CPU.
transfers() { awk '{print $1 + $5}' "/sys/block/${1##*/}/stat"; }
interrupts() { awk '/nvme[0-9]+q/ { sum += $2 } END { print sum + 0 }' /proc/interrupts; }
flushes() { awk '{print $16}' "/sys/block/${1##*/}/stat"; }
# asked DRIVE COMMAND…: what the kernel asks of the drive while the command runs, in /tmp/asked: W is a write, WFS one with FUA.
asked() {
    trace=/sys/kernel/tracing number=$(tr : , < "/sys/block/${1##*/}/dev")
    shift
    [ -d $trace/events ] || must mount -t tracefs tracefs $trace
    echo > $trace/trace
    echo 1 > $trace/events/block/block_rq_issue/enable
    must "$@"
    echo 0 > $trace/events/block/block_rq_issue/enable
    sed -n "s/.*block_rq_issue: $number \([A-Z]*\) .*/\1/p" $trace/trace > /tmp/asked
}

# The kernel's own target over siw, exporting a RAM disk or a file: kernel_target NQN ADDRESS PORT [FILE].
kernel_target() {
    modprobe nvmet_rdma || fail "nvmet_rdma"
    [ -n "$4" ] || modprobe brd rd_nr=1 rd_size=65536 || fail "brd"
    root=/sys/kernel/config/nvmet
    mkdir "$root/subsystems/$1"
    echo 1 > "$root/subsystems/$1/attr_allow_any_host"
    mkdir "$root/subsystems/$1/namespaces/1"
    echo -n "${4:-/dev/ram0}" > "$root/subsystems/$1/namespaces/1/device_path"
    [ -z "$4" ] || echo 1 > "$root/subsystems/$1/namespaces/1/buffered_io"
    echo 1 > "$root/subsystems/$1/namespaces/1/enable"
    mkdir "$root/ports/1"
    echo rdma > "$root/ports/1/addr_trtype"
    echo ipv4 > "$root/ports/1/addr_adrfam"
    echo "$2" > "$root/ports/1/addr_traddr"
    echo "$3" > "$root/ports/1/addr_trsvcid"
    ln -s "$root/subsystems/$1" "$root/ports/1/subsystems/$1" || fail "the kernel's target does not listen"
}

# Our initiator in the guest: attach_ours OPTION… sets $device to the block device (by way of $VIA), detach_ours takes it away.
attach_ours() {
    export HOME=/tmp
    keep attached.json "$IRONSIDE" connect "$@" -o json -c 1 --via "${VIA:-fuse}"
    device=$(sed -n 's/.*"DevicePath": "\(.*\)".*/\1/p' /tmp/said)
}
# Kills the process behind the one attachment there is; and kill_attachment waits until it is gone.
shoot_attachment() {
    kill -9 "$("$IRONSIDE" list -o json | sed -n 's/.*"Process": \([0-9]*\).*/\1/p')" || fail "nothing to kill"
}
kill_attachment() {
    shoot_attachment
    wait_until 'flock -n /run/ironside/vol0/lock true'
}
detach_ours() { must "$IRONSIDE" disconnect -d "$device"; }

# What the kernel was told of our device, and that it was told so: limit NAME, is NAME VALUE.
limit() { cat "/sys/block/${device##*/}/queue/$1"; }
is() { [ "$(limit "$1")" = "$2" ] || fail "$1 is $(limit "$1"), not $2"; }

# outlives_a_kill DEVICE WORD: our device is mounted and written to when its process is killed; requests wait, and go on
# once it is recovered by WORD.
outlives_a_kill() {
    step "ext4"
    must mkfs.ext4 -q -F "$1"
    mkdir -p /tmp/mounted
    must mount "$1" /tmp/mounted
    must cp -r /usr/share/common-licenses /tmp/mounted/
    must_fail "$IRONSIDE" disconnect -d "$1"
    says "mounted at /tmp/mounted"

    step "killed while it is mounted and written to: requests wait, nobody sees an error"
    dd if=/dev/urandom of=/tmp/mounted/filled bs=64k count=256 oflag=direct 2> /tmp/dd-said & writing=$!
    wait_until '[ -s /tmp/mounted/filled ]'
    kill_attachment
    keep orphaned "$IRONSIDE" list
    says "orphaned"
    must "$IRONSIDE" recover "$2"
    wait $writing || { cat /tmp/dd-said; fail "an error came through"; }
    must umount /tmp/mounted
    must fsck.ext4 -f -n "$1"
    must mount -o ro "$1" /tmp/mounted
    must diff -r /usr/share/common-licenses /tmp/mounted/common-licenses
    must umount /tmp/mounted
}
