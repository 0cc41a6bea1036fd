"""`ironside` by the ublk driver on two cores: a queue for each, both used, killed under load and recovered, nothing left."""


def run(lab):
    lab.guest(
        """
        modprobe ublk_drv || fail "modules"
        export HOME=/tmp LISTEN=127.0.0.1:4420 VIA=ublk
        serve --namespace ram:64MiB,lba=512
        controllers() { grep -c "controller connected" /out/target.log; }
        queues() { ls "/sys/block/${device##*/}/mq" | wc -l; }
        on_both() {
            must fio --name=both --filename="$device" --rw=randrw --bs=4k --size=4m --numjobs=2 --offset_increment=16m \
                --cpus_allowed=0,1 --cpus_allowed_policy=split --iodepth=16 --ioengine=libaio --direct=1 \
                --verify=crc32c --do_verify=1 --verify_fatal=1
        }
        step "two cores, two queues, two controllers"
        attach_ours -a 127.0.0.1 -n "$NQN" --cores 2 -P 1
        [ "$(queues)" = 2 ] && [ "$(controllers)" = 2 ] || fail "$(queues) queues, $(controllers) controllers"
        step "every thread writes back nothing, and its memory is locked"
        process=$("$IRONSIDE" list -o json | sed -n 's/.*"Process": \\([0-9]*\\).*/\\1/p')
        for thread in /proc/$process/task/*; do
            # PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE: what PR_SET_IO_FLUSHER sets.
            flags=$(sed 's/.*) //' $thread/stat | cut -d' ' -f7)
            [ $((flags & 0x180000)) = $((0x180000)) ] || fail "$(cat $thread/comm) has flags $flags"
        done
        [ "$(awk '/VmLck/ {print $2}' /proc/$process/status)" -gt 0 ] || fail "nothing is locked"
        step "fio on both"
        on_both
        outlives_a_kill "$device" vol0
        [ "$(queues)" = 2 ] && [ "$(controllers)" = 4 ] || fail "$(queues) queues, $(controllers) controllers"
        on_both
        detach_ours
        step "rounds"
        for round in $(seq 5); do attach_ours -a 127.0.0.1 -n "$NQN" --cores 0-1; on_both; detach_ours; done
        [ -z "$(ls -d /dev/ublkb* /dev/ublkc* 2>/dev/null)" ] || fail "left: $(ls -d /dev/ublk*)"
        stop_serving
        """,
        cpus=2,
        programs=("target", "ironside"),
        NQN="nqn.2026-01.org.example:ublk-cores",
        expected="ublk|I/O error|Buffer I/O",
    )
