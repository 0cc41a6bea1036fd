//! What Request and Reply settle: CRC, the depths of RDMA Reads, and who may send first (RFC 6581, section 9).
use super::frame::{Enhanced, Frame, FrameKind, RtrForms};
use crate::iwarp::terminate::Reason;
use crate::verbs::PrivateData;

/// RDMA Reads we have outstanding towards a peer whose revision cannot say how many it takes.
const UNSPOKEN_READS: u16 = 16;

/// What one side can do and wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Offer {
    /// Whether to insist on CRC32C.
    pub crc: bool,
    /// As the active side: whether to turn away from a peer which insists on it. Neither side can forbid it
    /// (RFC 5044, section 7.1.1), so all there is to do is to leave.
    pub refuse_crc: bool,
    /// RDMA Reads the peer may have outstanding, at most.
    pub ird: u16,
    /// RDMA Reads we want outstanding, at most.
    pub ord: u16,
}

/// The form of the ready-to-receive indication.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rtr {
    Send,
    Write,
    Read,
}

impl From<Rtr> for RtrForms {
    fn from(rtr: Rtr) -> Self {
        Self { send: rtr == Rtr::Send, write: rtr == Rtr::Write, read: rtr == Rtr::Read }
    }
}

/// What was agreed on, as one side sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    pub crc: bool,
    /// RDMA Reads the peer may have outstanding.
    pub ird: u16,
    /// RDMA Reads we may have outstanding.
    pub ord: u16,
    /// What the active side sends first, and the passive side swallows.
    pub rtr: Option<Rtr>,
}

/// Why there is no agreement.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error("the peer rejected the connection")]
    Rejected(Box<PrivateData>),
    #[error("the peer wants markers")]
    Markers,
    #[error("the peer insists on CRC32C")]
    Crc,
    #[error("the peer answered with revision {0}, which was not asked for")]
    Revision(u8),
    #[error("the peer cannot take the RDMA Reads that are needed")]
    InsufficientIrd,
    #[error("the peer chose no ready-to-receive indication that was offered")]
    NoMatchingRtr,
}

impl Refusal {
    /// What to tell the peer by a Terminate, if it has to be told.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        match self {
            Self::Rejected(_) => None,
            // An error of ours which has no number of its own (RFC 6581, section 9.3).
            Self::Markers | Self::Crc => Some(Reason::MPA_LOCAL_CATASTROPHIC),
            Self::Revision(_) => Some(Reason::MPA_FRAME),
            Self::InsufficientIrd => Some(Reason::MPA_INSUFFICIENT_IRD),
            Self::NoMatchingRtr => Some(Reason::MPA_NO_MATCHING_RTR),
        }
    }
}

/// The active side: it speaks revision 2 and offers the zero-length Write and Read. Adapters which insist
/// on an indication get one; the Linux software provider takes it too.
#[derive(Clone, Copy, Debug)]
pub struct Initiator {
    offer: Offer,
}

impl Initiator {
    #[must_use]
    pub const fn new(offer: Offer) -> Self {
        Self { offer }
    }

    /// The Request to send.
    #[must_use]
    pub fn request(&self, private_data: PrivateData) -> Frame {
        let enhanced = Enhanced {
            peer_to_peer: true,
            rtr: RtrForms { send: false, write: true, read: true },
            ird: self.offer.ird,
            // The indication may be a Read.
            ord: self.offer.ord.max(1),
        };
        Frame {
            kind: FrameKind::Request,
            markers: false,
            crc: self.offer.crc,
            reject: false,
            revision: 2,
            enhanced: Some(enhanced),
            private_data,
        }
    }

    /// What the Reply makes of it.
    ///
    /// # Errors
    /// Why the connection cannot be.
    pub fn agree(&self, reply: &Frame) -> Result<Terms, Refusal> {
        if reply.reject {
            return Err(Refusal::Rejected(Box::new(reply.private_data.clone())));
        }
        if reply.markers {
            return Err(Refusal::Markers);
        }
        let Some(theirs) = reply.enhanced else { return Err(Refusal::Revision(reply.revision)) };
        let crc = self.offer.crc || reply.crc;
        if crc && self.offer.refuse_crc {
            return Err(Refusal::Crc);
        }
        let ord = depth(theirs.ird, self.offer.ord.max(1));
        let rtr = match theirs.rtr {
            _ if !theirs.peer_to_peer => None,
            RtrForms { write: true, .. } => Some(Rtr::Write),
            RtrForms { read: true, .. } if ord == 0 => return Err(Refusal::InsufficientIrd),
            RtrForms { read: true, .. } => Some(Rtr::Read),
            RtrForms { .. } => return Err(Refusal::NoMatchingRtr),
        };
        if theirs.ord != Enhanced::UNSPECIFIED && theirs.ord > self.offer.ird {
            return Err(Refusal::InsufficientIrd);
        }
        Ok(Terms { crc, ird: depth(theirs.ord, self.offer.ird), ord, rtr })
    }
}

/// The passive side, holding the Request it has to answer.
#[derive(Clone, Debug)]
pub struct Responder {
    request: Frame,
}

impl Responder {
    /// # Errors
    /// The Reply which says that this Request cannot be granted, if so.
    pub fn new(request: Frame) -> Result<Self, Box<Frame>> {
        let responder = Self { request };
        if responder.request.markers {
            Err(Box::new(responder.reject(PrivateData::new())))
        } else {
            Ok(responder)
        }
    }

    #[must_use]
    pub fn private_data(&self) -> &PrivateData {
        &self.request.private_data
    }

    /// RDMA Reads the peer lets us have outstanding.
    #[must_use]
    pub fn reads(&self) -> u16 {
        match self.request.enhanced {
            Some(Enhanced { ird: Enhanced::UNSPECIFIED, .. }) | None => UNSPOKEN_READS,
            Some(theirs) => theirs.ird,
        }
    }

    /// Says yes: the Reply, and what holds from now on.
    #[must_use]
    pub fn accept(&self, offer: Offer, private_data: PrivateData) -> (Frame, Terms) {
        let crc = offer.crc || self.request.crc;
        let ord = offer.ord.min(self.reads());
        let (ird, rtr) = match self.request.enhanced {
            Some(theirs) => {
                let rtr = choose(theirs);
                // An indication by a Read has to be taken, even of a peer which sends no other.
                let least = u16::from(rtr == Some(Rtr::Read));
                (theirs.ord.min(offer.ird).max(least), rtr)
            }
            None => (offer.ird, None),
        };
        // Who leaves a depth open hears that it is (RFC 6581, section 9.1).
        let said = |asked, depth| if asked == Enhanced::UNSPECIFIED { asked } else { depth };
        let enhanced = self.request.enhanced.map(|theirs| Enhanced {
            peer_to_peer: theirs.peer_to_peer,
            rtr: rtr.map_or_else(RtrForms::default, RtrForms::from),
            ird: said(theirs.ord, ird),
            ord: said(theirs.ird, ord),
        });
        (self.reply(crc, false, enhanced, private_data), Terms { crc, ird, ord, rtr })
    }

    /// Says no.
    #[must_use]
    pub fn reject(&self, private_data: PrivateData) -> Frame {
        // An enhanced Request has an enhanced Reply, even if it says no.
        let enhanced =
            self.request.enhanced.map(|theirs| Enhanced { ird: 0, ord: theirs.ird, ..Default::default() });
        self.reply(self.request.crc, true, enhanced, private_data)
    }

    fn reply(&self, crc: bool, reject: bool, enhanced: Option<Enhanced>, private_data: PrivateData) -> Frame {
        let revision = self.request.revision;
        Frame { kind: FrameKind::Reply, markers: false, crc, reject, revision, enhanced, private_data }
    }
}

/// The Write first: it takes neither a buffer nor a Read. A peer which offers none hears what we could take (RFC
/// 6581, section 9.2), and has to leave if it cannot send that.
fn choose(theirs: Enhanced) -> Option<Rtr> {
    match theirs.rtr {
        _ if !theirs.peer_to_peer => None,
        RtrForms { write: false, read: true, .. } => Some(Rtr::Read),
        RtrForms { write: false, send: true, .. } => Some(Rtr::Send),
        RtrForms { .. } => Some(Rtr::Write),
    }
}

/// A depth which the peer stated, as far as ours goes.
fn depth(stated: u16, ours: u16) -> u16 {
    if stated == Enhanced::UNSPECIFIED { ours.min(UNSPOKEN_READS) } else { stated.min(ours) }
}
