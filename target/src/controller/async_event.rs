//! Asynchronous events: requests the host leaves with the controller, and notices which use them up.
use ironside_common::nvme::Status;
use ironside_common::nvme::async_event::AsyncEvent;
use ironside_common::nvme::feature::EventMask;

use super::Event;

/// Requests which may be held at once; AERL is one less.
pub(super) const REQUESTS_MAX: u8 = 4;

/// What a host can be told unasked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Notice {
    Namespaces,
    Access,
    Discovery,
    /// Which notifications there are of them has a mask of its own.
    Reservations,
}

const NOTICES: [Notice; 4] = [Notice::Namespaces, Notice::Access, Notice::Discovery, Notice::Reservations];

impl Notice {
    const fn mask(self) -> EventMask {
        match self {
            Self::Namespaces => EventMask::NAMESPACE_ATTRIBUTES,
            Self::Access => EventMask::ANA,
            Self::Discovery => EventMask::DISCOVERY,
            Self::Reservations => EventMask(0),
        }
    }

    const fn event(self) -> AsyncEvent {
        match self {
            Self::Namespaces => AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED,
            Self::Access => AsyncEvent::ANA_CHANGED,
            Self::Discovery => AsyncEvent::DISCOVERY_CHANGED,
            Self::Reservations => AsyncEvent::RESERVATION_NOTIFICATION,
        }
    }
}

/// How far a notice has come. Once told, it is not told again until the host has read the log page.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    Quiet,
    Raised,
    Told,
}

#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    held: u8,
    wanted: EventMask,
    states: [State; NOTICES.len()],
}

impl AsyncEvents {
    pub(super) const fn wanted(&self) -> EventMask {
        self.wanted
    }

    /// What the host asks not to be told is forgotten.
    pub(super) fn set_wanted(&mut self, wanted: EventMask) {
        self.wanted = wanted;
        for notice in NOTICES {
            if !wanted.contains(notice.mask()) {
                self.states[notice as usize] = State::Quiet;
            }
        }
    }

    /// The host left a request here.
    pub(super) fn hold(&mut self) -> Result<(), Status> {
        if self.held == REQUESTS_MAX {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        }
        self.held += 1;
        Ok(())
    }

    pub(super) fn raise(&mut self, notice: Notice) {
        let state = &mut self.states[notice as usize];
        if self.wanted.contains(notice.mask()) && *state == State::Quiet {
            *state = State::Raised;
        }
    }

    /// The host read the log page: it knows everything up to now.
    pub(super) fn log_read(&mut self, notice: Notice) {
        self.states[notice as usize] = State::Quiet;
    }

    /// The next notice, if there is a request to answer.
    pub(super) fn poll(&mut self) -> Option<Event> {
        let notice = NOTICES.into_iter().find(|&notice| self.states[notice as usize] == State::Raised)?;
        self.held = self.held.checked_sub(1)?;
        self.states[notice as usize] = State::Told;
        Some(Event::AsyncEvent { result: notice.event().to_dword() })
    }

    /// Lets go of every held request: the controller was disabled and begins anew, and none of before may be answered
    /// (NVM Express base specification 2.2, section 5.1.2).
    pub(super) fn release(&mut self) -> impl Iterator<Item = Event> + use<> {
        let held = usize::from(std::mem::take(self).held);
        std::iter::repeat_n(Event::Forget, held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(notice: Notice) -> Option<Event> {
        Some(Event::AsyncEvent { result: notice.event().to_dword() })
    }

    #[test]
    fn a_notice_waits_for_a_request_and_then_for_the_log_to_be_read() {
        let mut events = AsyncEvents::default();
        events.raise(Notice::Namespaces);
        events.hold().unwrap();
        assert_eq!(events.poll(), None, "nobody asked for it");
        events.set_wanted(EventMask::NAMESPACE_ATTRIBUTES);
        events.raise(Notice::Namespaces);
        assert_eq!(events.poll(), told(Notice::Namespaces));
        events.hold().unwrap();
        events.raise(Notice::Namespaces);
        assert_eq!(events.poll(), None, "told already");
        events.log_read(Notice::Namespaces);
        events.raise(Notice::Namespaces);
        assert_eq!(events.poll(), told(Notice::Namespaces));
        events.log_read(Notice::Namespaces);
        events.raise(Notice::Namespaces);
        assert_eq!(events.poll(), None, "no request is left");
        events.hold().unwrap();
        assert_eq!(events.poll(), told(Notice::Namespaces));
    }

    #[test]
    fn requests_have_a_limit_and_are_let_go_together() {
        let mut events = AsyncEvents::default();
        for _ in 0..REQUESTS_MAX {
            events.hold().unwrap();
        }
        assert_eq!(events.hold(), Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
        assert_eq!(events.release().count(), usize::from(REQUESTS_MAX));
        assert_eq!(events.release().count(), 0);
    }
}
