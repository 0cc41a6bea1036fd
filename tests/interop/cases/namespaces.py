"""Namespaces come, grow and go while the kernel writes to another: it sees each by the event, without a reconnect."""

import signal

from peer.target import NQN, free_port

MIB = 1 << 20


def run(lab):
    port, config = free_port(), lab.place / "target.toml"
    first, second = lab.place / "first", lab.place / "second"
    grow(first, 64)
    grow(second, 32)
    serve(config, port, first)
    with lab.target(config=config, port=port) as target:
        guest = lab.start_guest(
            """
            network
            connect "$ADDRESS" "$PORT" "$NQN" 1
            write_slowly "$device" 8m &
            writer=$!
            wait_until 'has_written "$device" 16'
            size() { blockdev --getsize64 "$(namespace 2)"; }
            step "one namespace"
            wait_until '[ $(blocks | wc -l) = 2 ]'
            [ "$(size)" = $((32 * 1048576)) ] || fail "it came with $(size) bytes"
            must dd if=/dev/urandom of="$(namespace 2)" bs=1M count=8 oflag=direct
            kernel_says 'rescanning namespaces'
            step "it came"
            wait_until '[ "$(size)" = $((48 * 1048576)) ]'
            must dd if=/dev/urandom of="$(namespace 2)" bs=1M seek=32 count=16 oflag=direct
            step "it grew"
            wait_until '[ $(blocks | wc -l) = 1 ]'
            step "it went"
            wait $writer || fail "fio failed"
            [ "$(state)" = live ] || fail "the controller is $(state)"
            dmesg > /tmp/said
            [ "$(grep -c 'creating 1 I/O queues' /tmp/said)" = 1 ] || fail "the kernel connected again"
            disconnect "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=port,
            NQN=NQN,
        )
        guest.wait_step("one namespace")
        serve(config, port, first, second)
        target.process.send_signal(signal.SIGHUP)
        guest.wait_step("it came")
        grow(second, 48)
        guest.wait_step("it grew")
        serve(config, port, first)
        target.process.send_signal(signal.SIGHUP)
        lab.finish(guest)
        assert target.log.read_text().count("reloaded:") == 2, target.said()


def grow(file, size_mib):
    with file.open("ab") as volume:
        volume.truncate(size_mib * MIB)


def serve(config, port, *volumes):
    """Writes the configuration which serves these files as namespaces 1, 2 and so on."""
    head = f'listen = ["127.0.0.1:{port}"]\n[[subsystem]]\nnqn = "{NQN}"\nallow-any-host = true\n'
    config.write_text(head + "".join(f'[[subsystem.namespace]]\npath = "{path}"\nlba = 512\n' for path in volumes))
