"""Keep-alive: a target that hangs is given up by the kernel, a guest that fell silent by the target; both recover."""

import re
import signal

from restart import EXPECTED


def run(lab):
    with lab.target("--namespace", "ram:64MiB") as target:
        guest = lab.start_guest(
            """
            network
            connect "$ADDRESS" "$PORT" "$NQN" 1 --keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=1800
            must dd if=/dev/urandom of=/tmp/written bs=1M count=4 iflag=fullblock
            must dd if=/tmp/written of="$device" bs=1M oflag=direct
            step "the target hangs"
            wait_until '[ "$(state)" = connecting ]'
            dmesg > /tmp/said
            says 'keep-alive\\|keep_alive'
            step "the kernel gave it up"
            wait_until '[ "$(state)" = live ]'
            step "the guest falls silent"
            kernel_log_from_here
            until_released silent
            kernel_says 'error recovery\\|Reconnecting'
            wait_until '[ "$(state)" = live ]'
            step "reconnected"
            must dd if="$device" of=/tmp/read bs=1M count=4 iflag=direct
            must cmp /tmp/written /tmp/read
            disconnect "$NQN"
            """,
            ADDRESS=lab.HOST,
            PORT=target.port,
            NQN=target.nqn,
        )
        guest.wait_step("the target hangs")
        target.process.send_signal(signal.SIGSTOP)
        guest.wait_step("the kernel gave it up")
        target.process.send_signal(signal.SIGCONT)
        guest.wait_step("the guest falls silent")
        expiries = lambda: len(re.findall("controller ends .*the host's keep alive did not come", target.log.read_text()))
        before = expiries()
        # The card loses its cable: nothing arrives, nothing says good-bye.
        guest.machine("set_link", name="net", up=False)
        guest.wait_until(lambda: expiries() > before, "the target never gave the guest up")
        guest.release("silent")
        guest.machine("set_link", name="net", up=True)
        lab.finish(guest, expected=EXPECTED)
