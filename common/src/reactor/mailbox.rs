//! How other threads reach a reactor: a bounded queue of messages, and an eventfd which is only touched
//! when the reactor sleeps.
//!
//! The receiver says that it sleeps before it looks at the queue for the last time; a sender looks whether
//! the receiver sleeps after it has queued its message. Both are sequentially consistent, so one of them
//! sees the other, and no message is slept upon.
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SendError, SyncSender, TrySendError, sync_channel};

use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Ring, source};

/// Makes a mailbox for up to `capacity` unread messages, and the way to send to it.
///
/// # Errors
/// When the system gives no eventfd.
pub fn mailbox<M>(capacity: usize) -> io::Result<(Sender<M>, Mailbox<M>)> {
    let (send, receive) = sync_channel(capacity);
    let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let bell = Arc::new(Bell { asleep: AtomicBool::new(false), wake });
    Ok((Sender { send, bell: Arc::clone(&bell) }, Mailbox { receive, bell, asleep: false, polled: false }))
}

#[derive(Debug)]
struct Bell {
    asleep: AtomicBool,
    wake: EventFd,
}

impl Bell {
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::SeqCst) {
            // It can only fail when the counter is full, and then the receiver wakes anyway.
            let _ = self.wake.write(1);
        }
    }
}

/// Sends to one mailbox, from any thread.
#[derive(Debug)]
pub struct Sender<M> {
    send: SyncSender<M>,
    bell: Arc<Bell>,
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Self {
        Self { send: self.send.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<M> Sender<M> {
    /// Sends a message, and waits while the mailbox is full. Not for reactors, which never wait.
    ///
    /// # Errors
    /// The message, when the mailbox is gone.
    pub fn send(&self, message: M) -> Result<(), SendError<M>> {
        self.send.send(message)?;
        self.bell.ring();
        Ok(())
    }

    /// Sends a message if there is room.
    ///
    /// # Errors
    /// The message, when the mailbox is full or gone.
    pub fn try_send(&self, message: M) -> Result<(), TrySendError<M>> {
        self.send.try_send(message)?;
        self.bell.ring();
        Ok(())
    }
}

/// The receiving end, owned by one reactor.
#[derive(Debug)]
pub struct Mailbox<M> {
    receive: Receiver<M>,
    bell: Arc<Bell>,
    /// What we last told the senders.
    asleep: bool,
    /// Whether the ring watches the eventfd.
    polled: bool,
}

impl<M> Mailbox<M> {
    /// The oldest unread message.
    pub fn receive(&mut self) -> Option<M> {
        let message = self.receive.try_recv().ok()?;
        // Finding nothing must not disarm: this may be the last look before sleeping.
        if self.asleep {
            self.asleep = false;
            self.bell.asleep.store(false, Ordering::Relaxed);
        }
        Some(message)
    }

    /// Asks to be woken by the next message; for [`super::Tenant::arm`]. Look once more with
    /// [`Self::receive`] before sleeping. The wake-up comes as a completion of [`source::MAILBOX`] with
    /// this `slot`, for [`Self::on_ring`].
    pub fn arm(&mut self, ring: &mut Ring, slot: u16) {
        if !self.polled {
            self.polled = true;
            ring.poll_once(
                self.bell.wake.as_fd(),
                PollFlags::POLLIN,
                source::token(source::MAILBOX, slot, 0),
            );
        }
        self.asleep = true;
        self.bell.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The ring has seen the eventfd fire. The messages are to be received as ever.
    pub fn on_ring(&mut self) {
        self.polled = false;
        // Empty already is as good.
        let _ = self.bell.wake.read();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::memory::Memory;

    #[test]
    fn the_eventfd_is_touched_only_when_the_receiver_sleeps() {
        let mut ring = Ring::new(8, Memory::new()).unwrap();
        let (sender, mut mailbox) = mailbox(4).unwrap();
        sender.send(1).unwrap();
        assert!(mailbox.bell.wake.read().is_err());
        assert_eq!(mailbox.receive(), Some(1));
        mailbox.arm(&mut ring, 7);
        sender.send(2).unwrap();
        sender.send(3).unwrap();
        ring.wait(None).unwrap();
        assert_eq!(ring.reap().unwrap().0, source::token(source::MAILBOX, 7, 0));
        assert_eq!(mailbox.bell.wake.read(), Ok(1), "the second message rang again");
        mailbox.on_ring();
        assert_eq!((mailbox.receive(), mailbox.receive(), mailbox.receive()), (Some(2), Some(3), None));
    }

    #[test]
    fn no_message_is_slept_upon() {
        const MESSAGES: u32 = 20_000;
        let mut ring = Ring::new(8, Memory::new()).unwrap();
        let (sender, mut mailbox) = mailbox(16).unwrap();
        let sending = thread::spawn(move || (0..MESSAGES).for_each(|message| sender.send(message).unwrap()));
        let mut expected = 0;
        while expected < MESSAGES {
            mailbox.arm(&mut ring, 0);
            if let Some(message) = mailbox.receive() {
                assert_eq!(message, expected);
                expected += 1;
                continue;
            }
            ring.wait(None).unwrap();
            while let Some((_, result)) = ring.reap() {
                assert!(result > 0);
                mailbox.on_ring();
            }
        }
        sending.join().unwrap();
    }

    #[test]
    fn a_full_or_abandoned_mailbox_gives_the_message_back() {
        let (sender, mailbox) = mailbox(1).unwrap();
        sender.try_send('a').unwrap();
        assert_eq!(sender.try_send('b'), Err(TrySendError::Full('b')));
        drop(mailbox);
        assert_eq!(sender.send('c'), Err(SendError('c')));
    }
}
