"""A reload brings a RoCE adapter (rxe) and memory, in huge pages: registered with it before hosts come, and gone again."""

# What the kernel's host says when a namespace comes and goes.
EXPECTED = r"nvme nvme\d+: |nvme\d\w*: |rxe0: "
RAM_KIB = 16 << 10
# Huge pages of 2 MiB which are set aside, and what is left of them beside a reactor's buffers, 112 MiB, and one namespace, or two.
PAGES = 80
LEFT = (PAGES - 56 - 8, PAGES - 56 - 16)


def run(lab):
    guest = lab.start_guest(
        """
        roce
        # write NAMESPACE-OF-RAM…: at $listen.
        write() {
            printf 'listen = [%s]\\nreactors = 1\\nhuge-pages = "2MiB"\\nstate-dir = "/tmp/state"\\n[[subsystem]]\\nnqn = "%s"\\nallow-any-host = true\\n' \\
                "$listen" "$NQN" > /tmp/target.toml
            printf '[[subsystem.namespace]]\\nram = "%s"\\n' "$@" >> /tmp/target.toml
        }
        reloads=0
        reload() {
            reloads=$((reloads + 1))
            kill -HUP $serving
            wait_until '[ "$(grep -c "reloaded" /out/target.log)" = $reloads ]'
        }
        locked() { awk '/^VmPin/ { print $2 }' "/proc/$serving/status"; }

        free() { awk '/^HugePages_Free/ { print $2 }' /proc/meminfo; }
        echo $PAGES > /proc/sys/vm/nr_hugepages
        [ "$(free)" = $PAGES ] || fail "no huge pages"

        step "serve by software"
        listen='"127.0.0.1:4421"'
        write 16MiB
        "$TARGET" serve --config /tmp/target.toml > /out/target.log 2>&1 & serving=$!
        wait_until 'grep -q ^ready /out/target.log || ! kill -0 $serving'
        locked > /out/software
        free > /out/free

        step "an adapter comes"
        listen='"127.0.0.1:4421", "10.9.0.1:4420"'
        write 16MiB
        reload
        locked > /out/adapter
        connect 10.9.0.1 4420 "$NQN" 1
        must dd if="$device" of=/dev/null bs=128k iflag=direct
        locked > /out/connected

        step "a namespace comes"
        write 16MiB 16MiB
        reload
        locked > /out/grown
        free >> /out/free
        second=$(namespace 2)
        [ -b "$second" ] || fail "no second namespace"
        verify_with_fio "$second" randrw 16k 2m 8
        locked > /out/read

        step "an address that nobody has is refused"
        listen='"127.0.0.1:4421", "10.9.0.77:4420"'
        write 16MiB
        reload
        grep -q "not reloaded" /out/target.log || fail "it was reloaded"
        must dd if="$second" of=/dev/null bs=128k iflag=direct

        step "the namespace goes"
        listen='"127.0.0.1:4421", "10.9.0.1:4420"'
        write 16MiB
        reload
        wait_until '[ "$(locked)" = "$(cat /out/connected)" ]'
        free >> /out/free
        verify_with_fio "$device" randrw 16k 2m 8
        disconnect "$NQN"
        stop_serving
        """,
        programs=("target",),
        NQN="nqn.2026-01.org.example:reload",
        PAGES=PAGES,
    )
    lab.finish(guest, expected=EXPECTED)
    software, adapter, connected, grown, read = (
        int(guest.said(name)) for name in ("software", "adapter", "connected", "grown", "read")
    )
    assert software == 0, software
    assert tuple(int(line) for line in guest.said("free").split()) == (LEFT[0], LEFT[1], LEFT[0]), guest.said("free")
    # The buffers of a reactor, and the namespace, are locked before the first host comes.
    assert adapter >= (112 << 10) + RAM_KIB, adapter
    assert grown == connected + RAM_KIB, (connected, grown)
    assert read == grown, (grown, read)
