//! The loop of one reactor.
use std::time::Duration;

use super::{Idle, Next, Poll, Ring, RingError, clock};
use crate::time::Time;
use crate::verbs::Token;

/// What runs on a reactor.
pub trait Tenant {
    /// Does what there is to do without waiting: mailbox, provider, timers due, waiters. Says whether
    /// there was anything. Work for the ring is submitted after it, at the latest by the wait.
    fn turn(&mut self, ring: &mut Ring, now: Time) -> bool;

    /// An operation of the ring has completed, with what the system call would have returned, or the
    /// negative errno.
    fn on_ring(&mut self, ring: &mut Ring, token: Token, result: i32, now: Time);

    /// The loop is about to sleep: whatever may bring work has to wake the ring from now on. One more turn
    /// follows, for what came in between, and unless it finds something the loop sleeps. So arming is
    /// repeated, and finding nothing must not disarm.
    fn arm(&mut self, ring: &mut Ring);

    /// When the next turn is due at the latest.
    fn deadline(&self) -> Option<Time>;

    /// How the loop is to wait for work, from its beginning on.
    fn poll(&self) -> Poll {
        Poll::Adaptive
    }

    /// Whether the loop may end.
    fn finished(&self) -> bool {
        false
    }
}

/// Drives the tenant until it is finished.
///
/// # Errors
/// When the ring itself fails; operations fail by their completion.
pub fn run<T: Tenant>(ring: &mut Ring, tenant: &mut T) -> Result<(), RingError> {
    let mut idle = Idle::new(tenant.poll());
    while !tenant.finished() {
        let now = clock::now();
        if turn(ring, tenant, now)? {
            idle.worked();
            continue;
        }
        if idle.idled(now) == Next::Spin {
            std::hint::spin_loop();
            continue;
        }
        tenant.arm(ring);
        // What was armed reaches the kernel in the call which waits, unless there is work to be done before.
        if tenant.turn(ring, now) | reap(ring, tenant, now) {
            ring.submit()?;
            idle.worked();
        } else if !tenant.finished() {
            sleep(ring, tenant, &mut idle)?;
        }
    }
    Ok(())
}

/// One turn of the tenant and of the ring; says whether either found work.
fn turn<T: Tenant>(ring: &mut Ring, tenant: &mut T, now: Time) -> Result<bool, RingError> {
    let busy = tenant.turn(ring, now);
    ring.submit()?;
    Ok(reap(ring, tenant, now) | busy)
}

/// Takes what the ring has to tell; says whether there was anything.
fn reap<T: Tenant>(ring: &mut Ring, tenant: &mut T, now: Time) -> bool {
    let mut busy = false;
    while let Some((token, result)) = ring.reap() {
        tenant.on_ring(ring, token, result, now);
        busy = true;
    }
    busy
}

fn sleep<T: Tenant>(ring: &mut Ring, tenant: &T, idle: &mut Idle) -> Result<(), RingError> {
    let began = clock::now();
    let timeout = tenant.deadline().map(|deadline| deadline.since(began));
    if timeout == Some(Duration::ZERO) {
        return ring.submit();
    }
    ring.wait(timeout)?;
    idle.slept(began, clock::now());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::memory::Memory;
    use crate::reactor::{Mailbox, Timer, mailbox, source};

    /// Counts what it is told until it is told to stop.
    struct Counter {
        mailbox: Mailbox<Option<u32>>,
        timer: Timer,
        sum: u32,
        ticks: u32,
        wakes: u32,
        poll: Poll,
        finished: bool,
    }

    impl Tenant for Counter {
        fn turn(&mut self, _ring: &mut Ring, now: Time) -> bool {
            let mut busy = self.timer.expired(now);
            if busy {
                self.ticks += 1;
                self.timer.set(now + Duration::from_millis(1));
            }
            while let Some(message) = self.mailbox.receive() {
                busy = true;
                match message {
                    Some(number) => self.sum += number,
                    None => self.finished = true,
                }
            }
            busy
        }

        fn on_ring(&mut self, _ring: &mut Ring, token: Token, _result: i32, _now: Time) {
            assert_eq!(token, source::token(source::MAILBOX, 0, 0));
            self.wakes += 1;
            self.mailbox.on_ring();
        }

        fn arm(&mut self, ring: &mut Ring) {
            self.mailbox.arm(ring, 0);
        }

        fn deadline(&self) -> Option<Time> {
            self.timer.deadline()
        }

        fn poll(&self) -> Poll {
            self.poll
        }

        fn finished(&self) -> bool {
            self.finished
        }
    }

    /// Counts in a thread of its own what it is sent now and then: the sum, and how often it ticked and was woken.
    fn count(poll: Poll) -> (u32, u32, u32) {
        let (sender, mailbox) = mailbox(4).unwrap();
        let mut timer = Timer::unset();
        timer.set(Time::ZERO);
        let reactor = thread::spawn(move || {
            let mut ring = Ring::new(8, Memory::new()).unwrap();
            // The receiver is plain data until here; the ring never leaves this thread.
            let mut tenant = Counter { mailbox, timer, sum: 0, ticks: 0, wakes: 0, poll, finished: false };
            run(&mut ring, &mut tenant).unwrap();
            (tenant.sum, tenant.ticks, tenant.wakes)
        });
        for number in 0..1000 {
            sender.send(Some(number)).unwrap();
            if number % 100 == 0 {
                // Long enough to let it fall asleep now and then; nothing depends on whether it does.
                thread::sleep(Duration::from_millis(3));
            }
        }
        sender.send(None).unwrap();
        reactor.join().unwrap()
    }

    #[test]
    fn messages_and_timers_are_served_until_the_tenant_is_finished() {
        for poll in [Poll::Adaptive, Poll::Never] {
            let (sum, ticks, _) = count(poll);
            assert_eq!(sum, 499_500);
            assert!(ticks > 0);
        }
    }

    #[test]
    fn one_that_polls_is_never_woken_and_misses_nothing() {
        let (sum, ticks, wakes) = count(Poll::Always);
        assert_eq!((sum, wakes), (499_500, 0));
        assert!(ticks > 0);
    }
}
