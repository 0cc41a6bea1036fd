"""What must hold when the network between our two ends is bad. Each test gets a way to make a lab of its own."""

import signal
import time

MIXED = ("--rw=randrw", "--bsrange=512-1m", "--bs_unaligned=0", "--blockalign=512", "--size=24m", "--iodepth=16")
SMALL = ("--rw=randrw", "--bs=4k", "--size=8m", "--iodepth=32")
LARGE = ("--rw=write", "--bs=256k", "--size=24m", "--iodepth=8")
# fio paces itself, so that it is still at work when something happens; it counts bytes a second.
PACED = ("--rw=randrw", "--bs=4k", "--size=24m", "--iodepth=8", "--rate=2m,2m")


def test_mtu_1500(lab):
    """Ethernet's usual frames: every block size, no wrong byte"""
    with lab(mtu=1500) as net:
        net.attach()
        net.verify(*MIXED)
        net.verify(*LARGE)
        assert net.connections() == 1, "the connection was lost on a sound network"
        net.detach()


def test_mtu_9000(lab):
    """Jumbo frames, with and without CRC"""
    with lab(mtu=9000) as net:
        net.attach()
        net.verify(*MIXED)
        net.detach()
        net.attach("--crc", "peer", "-i", "2")
        net.verify(*MIXED)
        net.detach()


def test_loss(lab):
    """1 % of all packets lost"""
    cross(lab, "lost", loss=0.01)


def test_delay(lab):
    """20 ms each way"""
    with lab() as net:
        net.shape(delay_ms=20)
        net.attach("-Q", "256")
        net.verify("--rw=randrw", "--bs=16k", "--size=8m", "--iodepth=128")
        net.verify(*LARGE)
        net.detach()


def test_reordering(lab):
    """Every fourth packet may overtake others"""
    cross(lab, "overtakers", delay_ms=1, jitter_ms=4, reorder=0.25)


def cross(lab, count, **settings):
    """fio verifies across such a link, which must have done to more than a hundred packets what `count` says."""
    with lab() as net:
        net.shape(**settings)
        net.attach()
        net.verify(*SMALL)
        net.verify(*LARGE)
        assert net.shape(loss=0, reorder=0)[count] > 100, "the link was better than it was told to be"
        net.detach()


def test_zero_window(lab):
    """Either end stops reading for 3 s, its window closes and opens again: the connection stays"""
    with lab() as net:
        net.attach("-k", "30")
        host = net.listed()["Process"]
        fio = net.fio(*PACED)
        for stopped in (net.target.pid, host):
            time.sleep(1)
            net.stop_for(stopped, seconds=3)
        net.finish(fio)
        assert net.connections() == 1, "a closed window is no reason to end a connection"
        net.detach()


def test_hung_target(lab):
    """A target that hangs for longer than the keep-alive timeout: reconnected, nothing lost, no error"""
    with lab() as net:
        net.attach("-k", "1", "-c", "1")
        fio = net.fio(*PACED)
        time.sleep(1)
        net.stop_for(net.target.pid, seconds=5)
        net.finish(fio)
        assert net.connections() >= 2, "it should have given up on the hung target and come back"
        net.eventually_is("live")
        net.detach()


def test_link_down_5_s(lab):
    """The link is down for 5 s: ridden out with a patient keep-alive, reconnected with a short one"""
    for keep_alive_s, reconnected in ((30, False), (1, True)):
        with lab() as net:
            net.attach("-k", str(keep_alive_s), "-c", "1")
            fio = net.fio(*PACED)
            time.sleep(1)
            net.down()
            time.sleep(5)
            net.up()
            net.finish(fio)
            assert (net.connections() > 1) == reconnected, f"{net.connections()} connections"
            net.eventually_is("live")
            net.detach()


def soak_link_down_60_s(lab):
    """The link is down for a minute, twice"""
    with lab() as net:
        net.attach("-k", "5", "-c", "2")
        for _ in range(2):
            fio = net.fio(*PACED)
            time.sleep(1)
            net.down()
            time.sleep(60)
            net.up()
            net.finish(fio)
        net.eventually_is("live")
        net.detach()


def soak_link_down_for_ever(lab):
    """The link never comes back: requests fail when --ctrl-loss-tmo says so, and it can be detached"""
    with lab() as net:
        net.attach("-k", "2", "-c", "1", "-l", "10")
        fio = net.fio(*PACED)
        time.sleep(1)
        net.down()
        output = net.finish(fio, status=1)
        assert "Input/output error" in output or "error=" in output, output
        net.ironside("disconnect", "--force", "-n", net.attachment["SubsystemNQN"], check=False)
        net.attachment = None
        net.target.send_signal(signal.SIGTERM)
        assert net.target.wait(60) == 0, "the target drains without its host"


def soak_everything_at_once(lab):
    """Loss, delay and reordering together, with cuts of random length, many times"""
    with lab(seed=7) as net:
        net.shape(loss=0.01, delay_ms=5, jitter_ms=5, reorder=0.1)
        net.attach("-k", "2", "-c", "1")
        for cut_s in (1, 4, 2, 7, 3, 9, 1, 5):
            fio = net.fio(*PACED)
            time.sleep(1)
            net.down()
            time.sleep(cut_s)
            net.up()
            net.finish(fio)
        net.eventually_is("live")
        net.detach()
