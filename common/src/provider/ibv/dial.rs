//! Connects of ours: the address is resolved, which chooses the adapter, then the route, then the peer is asked.
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rdma_sys::rdma_cm_event_type;

use super::cm::{CmId, Happened};
use super::connection::{Full, Phase};
use super::lending::Lending;
use super::provider::Ibv;
use super::verbs::{HOST, connection_parameters, furnish};
use crate::verbs::{CmEvent, ConnectParameters, Limits, PrivateData, QpHandle, RejectReason};

/// How long resolving an address, and then a route, may take.
const RESOLVE_TIMEOUT_MS: i32 = 2000;
/// The handle of a connect which could not even begin; no connection ever has it.
const NO_HANDLE: QpHandle = QpHandle(u16::MAX);
/// RDMA Reads that a peer may have outstanding towards us, if the adapter takes as many.
const READS_IN: u32 = 128;

/// A connect of ours on its way.
pub(super) struct Wish {
    parameters: ConnectParameters,
    private_data: PrivateData,
    /// What it will be, once the route is known.
    pub(super) full: Option<Box<Full>>,
}

impl Ibv {
    pub(super) fn dial(
        &mut self,
        to: SocketAddr,
        parameters: ConnectParameters,
        private_data: PrivateData,
    ) -> QpHandle {
        let begun = CmId::new(self.library, &self.channel).and_then(|id| {
            let wish = Box::new(Wish { parameters, private_data, full: None });
            let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            let qp = self.insert(id, to, nowhere, Phase::Dialing(wish));
            qp.ok_or_else(|| io::Error::other("one reactor has no more connections"))
        });
        let qp = match begun {
            Ok(qp) => qp,
            Err(error) => {
                let reason = RejectReason::Unreachable(error.to_string());
                self.tell(CmEvent::Refused { qp: NO_HANDLE, reason });
                return NO_HANDLE;
            }
        };
        if let Err(error) = self.connections[usize::from(qp.0)].id.resolve_address(to, RESOLVE_TIMEOUT_MS) {
            self.refuse(qp, RejectReason::Unreachable(no_address(to, &error)));
        }
        qp
    }

    /// Connection management has something to say of a connect of ours.
    pub(super) fn on_dialing_event(&mut self, qp: QpHandle, happened: &Happened) {
        let connection = &mut self.connections[usize::from(qp.0)];
        let went_on = match happened.event {
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED => {
                connection.local = connection.id.local();
                connection.id.resolve_route(RESOLVE_TIMEOUT_MS)
            }
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED => self.request(qp),
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => {
                self.established(qp, happened.private_data.clone());
                Ok(())
            }
            _ => {
                let reason = reason(connection.peer, happened);
                self.refuse(qp, reason);
                Ok(())
            }
        };
        if let Err(error) = went_on {
            self.refuse(qp, RejectReason::Unreachable(error.to_string()));
        }
    }

    /// Makes the queue pair and asks the peer.
    fn request(&mut self, qp: QpHandle) -> io::Result<()> {
        let number = self.adapter_of(qp)?;
        let adapter = &mut self.adapters[number];
        let connection = &mut self.connections[usize::from(qp.0)];
        let Phase::Dialing(wish) = &connection.phase else { return Ok(()) };
        let (parameters, private_data) = (wish.parameters, wish.private_data.clone());
        let limits = Limits { send_queue: parameters.send_queue, reads: 0 };
        connection.lending = Lending::new(adapter.lends());
        let full = furnish(connection, adapter, number, parameters, limits, HOST)?;
        let reads = adapter.reads_in().min(READS_IN);
        if let Phase::Dialing(wish) = &mut connection.phase {
            wish.full = Some(Box::new(full));
        }
        let mut request = connection_parameters(&private_data)?;
        request.responder_resources = u8::try_from(reads).unwrap_or(u8::MAX);
        connection.id.connect(&mut request)
    }

    fn established(&mut self, qp: QpHandle, private_data: PrivateData) {
        let connection = &mut self.connections[usize::from(qp.0)];
        let Phase::Dialing(wish) = &mut connection.phase else { return };
        let Some(full) = wish.full.take() else { return };
        connection.phase = Phase::Full(full);
        self.tell(CmEvent::Established { qp, private_data });
    }

    /// A connect of ours has failed: nothing of it stays.
    pub(super) fn refuse(&mut self, qp: QpHandle, reason: RejectReason) {
        let connection = &mut self.connections[usize::from(qp.0)];
        if let Phase::Dialing(wish) = &mut connection.phase
            && let Some(full) = wish.full.take()
        {
            connection.phase = Phase::Full(full);
            connection.destroy_queue_pair();
            self.unlink(qp);
        }
        self.connections.remove(usize::from(qp.0));
        self.tell(CmEvent::Refused { qp, reason });
    }
}

fn no_address(to: SocketAddr, error: &io::Error) -> String {
    format!(
        "no RDMA adapter has a way to {} ({error}): ironside-target devices says which there are, and --provider iwarp needs none",
        to.ip()
    )
}

/// Why a connect of ours failed.
fn reason(to: SocketAddr, happened: &Happened) -> RejectReason {
    match happened.event {
        rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR => {
            RejectReason::Unreachable(no_address(to, &happened.error()))
        }
        rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR => RejectReason::Unreachable(format!(
            "the adapter finds no route to {} ({}): on InfiniBand a subnet manager has to run, on RoCE the target has to answer ARP",
            to.ip(),
            happened.error()
        )),
        rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE
            if happened.error().raw_os_error() == Some(libc::ETIMEDOUT) =>
        {
            RejectReason::TimedOut
        }
        rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE => {
            RejectReason::Unreachable(format!("{} does not answer: {}", to.ip(), happened.error()))
        }
        rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => rejected(to, happened),
        _ => RejectReason::Unreachable(happened.to_string()),
    }
}

fn rejected(to: SocketAddr, happened: &Happened) -> RejectReason {
    /// The consumer's own reason is in the private data (InfiniBand Architecture, 12.6.7.2).
    const CONSUMER: i32 = 28;
    const INVALID_SERVICE_ID: i32 = 8;
    let said = &happened.private_data;
    match happened.status {
        CONSUMER => RejectReason::Rejected(said.clone()),
        // iWARP tells by the system's error numbers.
        status if status == -libc::ECONNREFUSED && !said.is_empty() => RejectReason::Rejected(said.clone()),
        INVALID_SERVICE_ID => RejectReason::Unreachable(format!(
            "no RDMA listener at {to}: is the target there, and does it serve by an adapter? One which serves software RDMA only is reached with --provider iwarp"
        )),
        status => RejectReason::Unreachable(format!("rejected: {}", in_words(status))),
    }
}

/// Reasons of rejection as the InfiniBand Architecture numbers them, those which a host may meet.
fn in_words(status: i32) -> String {
    let words = match status {
        1 => "the peer has no queue pair left",
        3 => "the peer has no resources left",
        4 => "the peer's time has run out",
        5 => "the peer does not support the request",
        6 => "the peer finds the request malformed",
        9 => "the peer wants another transport service",
        10 => "the peer takes the connection for an old one",
        12 => "the peer does not know the GID",
        14 => "the peer does not take the service level",
        15 => "the peer does not take the traffic class",
        26 => "the peer does not take the path MTU",
        27 => "the peer takes fewer RDMA Reads",
        29 => "the peer does not take the RNR retry count",
        status if status < 0 => return io::Error::from_raw_os_error(-status).to_string(),
        _ => return format!("reason {status}"),
    };
    format!("{words} (reason {status})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(event: rdma_cm_event_type::Type, status: i32, private_data: &[u8]) -> RejectReason {
        let happened = Happened::of(event, status, private_data.try_into().unwrap());
        reason("192.0.2.1:4420".parse().unwrap(), &happened)
    }

    #[test]
    fn a_peers_own_reason_comes_through_and_others_are_put_in_words() {
        let rejected = rdma_cm_event_type::RDMA_CM_EVENT_REJECTED;
        assert_eq!(told(rejected, 28, b"why"), RejectReason::Rejected((&b"why"[..]).try_into().unwrap()));
        assert!(told(rejected, 8, b"").to_string().contains("no RDMA listener at 192.0.2.1:4420"));
        assert!(told(rejected, 3, b"").to_string().contains("no resources left (reason 3)"));
        assert!(told(rejected, -libc::ECONNREFUSED, b"").to_string().contains("Connection refused"));
        let unreachable = rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE;
        assert_eq!(told(unreachable, -libc::ETIMEDOUT, b""), RejectReason::TimedOut);
        let address = told(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV, b"").to_string();
        assert!(address.contains("No such device") && address.contains("--provider iwarp"), "{address}");
        let route = told(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR, -libc::ETIMEDOUT, b"").to_string();
        assert!(route.contains("subnet manager"), "{route}");
    }
}
