//! What goes over the admin queue: the steps of setting up, keep-alive, events, and looking for namespaces
//! again when they have changed.
use ironside_common::auth::{Job, Outcome};
use ironside_common::nvme::async_event::AsyncEvent;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::nvme::reservation::NotificationLog;
use ironside_common::nvme::{AdminOpcode, Command};
use ironside_common::time::Time;
use ironside_common::verbs::{ConnectParameters, Connections, HostVerbs, Sge};
use zerocopy::IntoBytes;

use super::authentication::Authentication;
use super::keep_alive::KeepAlive;
use super::queue::{Data, Queue, Refusal};
use super::reauthentication::Reauthentication;
use super::scan::Scan;
use super::setup::{Ask, Payload};
use super::{
    Fault, Host, HostEvent, IDENTIFY_LENGTH, Live, Namespace, Owner, Phase, ReservationNotice,
    TIMEOUT_CHECK_INTERVAL,
};

/// Bytes of a response capsule, and so of a receive buffer.
const RESPONSE_LENGTH: u32 = 16;

impl Host {
    /// Does what setting up asks for next.
    pub(super) fn drive_setup<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let Phase::Setup(setup) = &self.phase else { return };
        match setup.ask() {
            Ask::Dial { size, private_data, .. } => {
                let parameters = ConnectParameters {
                    receives: size,
                    receive_size: RESPONSE_LENGTH,
                    send_queue: Queue::<Owner>::send_queue(size),
                    reads: 0,
                };
                let qp = verbs.connect(self.options.address, parameters, private_data.as_bytes());
                self.dialing = Some(qp);
            }
            Ask::Command { queue, command, payload } => {
                let data = self.payload(self.scratch.page, &payload);
                self.send(verbs, queue.into(), command, data, Owner::Step, now);
            }
            // Whoever runs us asks for it.
            Ask::Sleep | Ask::Compute => {}
            Ask::Ready => self.go_live(verbs, now),
        }
    }

    /// What has to be computed before an authentication goes on, and by which number [`Self::computed`] is to call it;
    /// nothing most of the time.
    pub fn next_job(&mut self) -> Option<(u64, Job)> {
        let job = match &mut self.phase {
            Phase::Setup(setup) => setup.take_job(),
            Phase::Live(live) => live.reauthentication.machine().and_then(Authentication::take_job),
            _ => None,
        }?;
        self.jobs += 1;
        Some((self.jobs, job))
    }

    /// What the job of this number came to. Too late, it is nobody's: the authentication it was for has ended.
    pub fn computed<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        number: u64,
        outcome: Outcome,
        now: Time,
    ) {
        match &mut self.phase {
            _ if number != self.jobs => {}
            Phase::Setup(setup) => {
                if matches!(setup.ask(), Ask::Compute) {
                    setup.computed(outcome);
                    self.drive_setup(verbs, now);
                }
            }
            Phase::Live(live) => {
                if let Some(machine) = live.reauthentication.machine() {
                    machine.computed(outcome);
                }
            }
            _ => {}
        }
    }

    /// A command of the current step was answered.
    pub(super) fn on_step<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        result: Result<u64, Refusal>,
        now: Time,
    ) {
        self.memory.read(self.scratch.page, &mut self.page[..]);
        match &mut self.phase {
            Phase::Setup(setup) => match setup.answered(result, &self.page, now) {
                Ok(()) => self.drive_setup(verbs, now),
                Err(error) => self.fail_setup(verbs, error, now),
            },
            Phase::Live(live) => {
                let Some(mut scan) = live.scan.take() else { return };
                // A list which cannot be had now leaves everything as it was.
                let usable = scan.answered(result.map(drop), &self.page).is_ok();
                if usable && scan.query().is_some() {
                    live.scan = Some(scan);
                } else if usable {
                    let found = scan.into_found();
                    self.take_access(found.access);
                    if let Some(notification) = found.notification {
                        self.take_notification(&notification);
                    }
                    if let Some(namespaces) = found.namespaces {
                        self.reconcile(namespaces);
                    }
                }
                self.drive_scan(verbs, now);
            }
            Phase::Shutdown { .. } => self.on_shutdown_step(verbs, result, now),
            Phase::Idle | Phase::Ending(_) | Phase::Waiting { .. } | Phase::Over => {}
        }
    }

    pub(super) fn on_keep_alive<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        result: Result<u64, Refusal>,
        now: Time,
    ) {
        let Phase::Live(live) = &mut self.phase else { return };
        match result {
            Ok(_) => live.keep_alive.answered(),
            Err(refusal) => self.lose(verbs, Fault::KeepAliveRefused(refusal), now),
        }
    }

    pub(super) fn on_async_event<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        result: Result<u64, Refusal>,
        now: Time,
    ) {
        let Phase::Live(live) = &mut self.phase else { return };
        // A controller which refuses the request will refuse the next one too.
        let Ok(value) = result else { return };
        let event = AsyncEvent::from_dword(value as u32);
        match event {
            AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED => live.rescan = true,
            AsyncEvent::ANA_CHANGED => live.reread_access = true,
            AsyncEvent::RESERVATION_NOTIFICATION => live.notified = true,
            _ => {}
        }
        self.ask_for_event(verbs, now);
        self.drive_scan(verbs, now);
    }

    /// Looks again which namespaces this controller is a way to, because it refused a command for want of one.
    pub fn reread_access<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        if let Phase::Live(live) = &mut self.phase {
            live.reread_access = true;
            self.drive_scan(verbs, now);
        }
    }

    fn take_access(&mut self, access: Option<Vec<(u32, AnaState)>>) {
        if let Some(access) = access.filter(|access| *access != self.access) {
            self.access = access;
            self.events.push_back(HostEvent::AccessChanged);
        }
    }

    /// Reading one takes it from the controller's log, which tells of more only once it is empty.
    fn take_notification(&mut self, log: &NotificationLog) {
        if let Phase::Live(live) = &mut self.phase {
            live.notified |= log.available > 0;
        }
        let NotificationLog { count, kind, nsid, .. } = log;
        let notice = ReservationNotice { count: count.get(), kind: *kind, nsid: nsid.get() };
        self.events.push_back(HostEvent::Notified(notice));
    }

    pub(super) fn keep_alive<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let Phase::Live(live) = &mut self.phase else { return };
        if live.keep_alive.is_expired(now) {
            return self.lose(verbs, Fault::KeepAlive(self.options.kato_ms()), now);
        }
        if self.queues[0].has_room() && live.keep_alive.poll(now) {
            let command = Command::new(AdminOpcode::KEEP_ALIVE.0, 0, 0);
            self.queues[0].submit(verbs, command, Data::None, Owner::KeepAlive, now);
        }
    }

    fn go_live<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let Phase::Setup(setup) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        let mut association = setup.into_association();
        let found = std::mem::take(&mut association.namespaces);
        let access = std::mem::take(&mut association.access);
        let wants_events = association.controller.events.0 != 0;
        let authenticates = association.keys.is_some();
        // Others may have come while it was connecting.
        let is_due = authenticates && association.keys != self.options.keys;
        if self.association.replace(association).is_some() {
            self.counters.reconnects += 1;
        }
        self.phase = Phase::Live(Box::new(Live {
            keep_alive: KeepAlive::new(self.options.keep_alive_tmo, now),
            scan: None,
            rescan: false,
            reread_access: false,
            notified: false,
            next_timeout_check: now + TIMEOUT_CHECK_INTERVAL,
            reauthentication: Reauthentication::new(authenticates, is_due),
            close_by: None,
        }));
        self.reconnect.succeeded();
        if std::mem::take(&mut self.fails_fast) && !self.closing {
            self.requests.accept();
        }
        self.take_access(Some(access));
        self.reconcile(found);
        self.events.push_back(HostEvent::Connected);
        if wants_events && self.io_queues() > 0 {
            self.ask_for_event(verbs, now);
        }
    }

    fn ask_for_event<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        if self.queues[0].has_room() {
            let command = Command::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0, 0);
            self.queues[0].submit(verbs, command, Data::None, Owner::AsyncEvent, now);
        }
    }

    /// Sends the next query of the scan, and begins one if a change was announced.
    fn drive_scan<V: HostVerbs + Connections>(&mut self, verbs: &mut V, now: Time) {
        let (Phase::Live(live), Some(association)) = (&mut self.phase, &self.association) else { return };
        let controller = &association.controller;
        if live.scan.is_none() && std::mem::take(&mut live.rescan) {
            let page_shift = association.capabilities.page_shift_min();
            live.reread_access = false;
            live.scan = Some(Scan::again(association.version, page_shift, controller));
        } else if live.scan.is_none() && std::mem::take(&mut live.reread_access) {
            live.scan = controller.reports_access.then(|| Scan::of_access(controller));
        } else if live.scan.is_none() && std::mem::take(&mut live.notified) {
            live.scan = Some(Scan::of_notification(controller));
        } else if live.scan.is_some() && self.queues[0].outstanding_of(|owner| *owner == Owner::Step) > 0 {
            return;
        }
        let Some(query) = live.scan.as_ref().and_then(Scan::query) else { return };
        let data = self.payload(self.scratch.page, &Payload::In(query.length));
        self.send(verbs, 0, query.command, data, Owner::Step, now);
    }

    /// Makes a page of the scratch ready for a command's data.
    pub(super) fn payload(&self, page: Sge, payload: &Payload) -> Data {
        match payload {
            Payload::None => Data::None,
            Payload::In(length) => {
                assert!(*length as usize <= IDENTIFY_LENGTH, "a read beyond the page");
                self.memory.zero(page);
                Data::In(page.slice(0, *length))
            }
            Payload::Out(bytes) => {
                self.memory.zero(page);
                let length = u32::try_from(bytes.len()).expect("a message has less than 2 KiB");
                let place = page.slice(0, length);
                self.memory.write(place, bytes);
                Data::Out(place)
            }
            Payload::Connect(data) => {
                self.memory.write(page, data.as_bytes());
                Data::Out(page.slice(0, data.as_bytes().len() as u32))
            }
        }
    }

    fn send<V: HostVerbs + Connections>(
        &mut self,
        verbs: &mut V,
        queue: usize,
        command: Command,
        data: Data,
        owner: Owner,
        now: Time,
    ) {
        let queue = &mut self.queues[queue];
        if queue.has_room() {
            queue.submit(verbs, command, data, owner, now);
        } else {
            self.lose(verbs, Fault::NoRoom, now);
        }
    }

    /// Compares what was found with what is known. Another namespace under a known number is not taken for
    /// it: requests for the old one fail rather than reach the wrong data.
    fn reconcile(&mut self, found: Vec<Namespace>) {
        let mut seen = vec![false; self.namespaces.len()];
        for namespace in found {
            let known = self.namespaces.iter().position(|known| known.nsid == namespace.nsid);
            let Some(index) = known else {
                self.events.push_back(HostEvent::NamespaceAdded(self.namespaces.len()));
                self.namespaces.push(namespace);
                continue;
            };
            let known = &mut self.namespaces[index];
            if known.is_same(&namespace) {
                seen[index] = true;
                if (known.geometry, known.available) != (namespace.geometry, true) {
                    self.events.push_back(HostEvent::NamespaceChanged(index));
                }
                *known = namespace;
            } else {
                known.replacement = Some(namespace.identity);
            }
        }
        for (index, seen) in seen.into_iter().enumerate() {
            if !seen && std::mem::replace(&mut self.namespaces[index].available, false) {
                self.events.push_back(HostEvent::NamespaceChanged(index));
            }
        }
    }
}
