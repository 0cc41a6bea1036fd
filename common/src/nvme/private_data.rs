//! What the two ends of an NVMe/RDMA connection tell each other while it is made, in the private data of the
//! connection manager (NVM Express RDMA transport specification 1.0, section 3.1). It may arrive longer than it was sent,
//! so a prefix is read.
use std::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The private data of a connect request as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Request {
    /// 0 is the only one there is.
    pub record_format: U16,
    pub qid: U16,
    /// Entries of the host's receive queue, a count.
    pub hrqsize: U16,
    /// Entries of the host's send queue, less one.
    pub hsqsize: U16,
    /// Of an I/O queue, from newer hosts; else 0.
    pub cntlid: U16,
    pub reserved_10: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == 32);

impl Request {
    /// A queue of `entries` commands, which is also the number of responses the host can receive.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(qid: u16, entries: u16, cntlid: u16) -> Self {
        Self {
            qid: qid.into(),
            hrqsize: entries.into(),
            hsqsize: entries.checked_sub(1).expect("a queue has entries").into(),
            cntlid: cntlid.into(),
            ..Self::new_zeroed()
        }
    }

    /// # Errors
    /// Why to reject the connection: too short, or of a format nobody knows.
    pub fn parse(private_data: &[u8]) -> Result<Self, RejectStatus> {
        let (request, _) =
            Self::read_from_prefix(private_data).map_err(|_| RejectStatus::INVALID_PRIVATE_DATA_LENGTH)?;
        if request.record_format.get() != 0 {
            return Err(RejectStatus::INVALID_RECORD_FORMAT);
        }
        Ok(request)
    }

    /// How many commands the host may have outstanding: so many receives have to be posted.
    #[must_use]
    pub fn commands(&self) -> u32 {
        u32::from(self.hsqsize) + 1
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVMe/RDMA request: queue {}, {} commands, ", self.qid, self.commands())?;
        write!(f, "{} receives, controller {}", self.hrqsize, self.cntlid)
    }
}

/// The private data of an accept as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Reply {
    pub record_format: U16,
    /// Entries of the controller's receive queue, a count.
    pub crqsize: U16,
    pub reserved_4: [u8; 28],
}

const _: () = assert!(size_of::<Reply>() == 32);

impl Reply {
    #[must_use]
    pub fn new(crqsize: u16) -> Self {
        Self { crqsize: crqsize.into(), ..Self::new_zeroed() }
    }

    /// `None` if it is too short; what it says is a hint only, as hosts treat it.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        Self::read_from_prefix(private_data).ok().map(|(reply, _)| reply)
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVMe/RDMA reply: {} receives", self.crqsize)
    }
}

/// The private data of a reject as it is on the wire.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Reject {
    pub record_format: U16,
    pub status: U16,
}

const _: () = assert!(size_of::<Reject>() == 4);

impl Reject {
    #[must_use]
    pub fn new(status: RejectStatus) -> Self {
        Self { record_format: 0.into(), status: status.0.into() }
    }

    /// `None` if it is too short.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        Self::read_from_prefix(private_data).ok().map(|(reject, _)| reject)
    }

    #[must_use]
    pub fn status(&self) -> RejectStatus {
        RejectStatus(self.status.get())
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVMe/RDMA reject: {}", self.status())
    }
}

/// STS: why a connection was rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RejectStatus(pub u16);

impl RejectStatus {
    pub const INVALID_PRIVATE_DATA_LENGTH: Self = Self(1);
    pub const INVALID_RECORD_FORMAT: Self = Self(2);
    pub const INVALID_QID: Self = Self(3);
    pub const INVALID_HSQSIZE: Self = Self(4);
    pub const INVALID_HRQSIZE: Self = Self(5);
    pub const NO_RESOURCES: Self = Self(6);
    pub const INVALID_IRD: Self = Self(7);
    pub const INVALID_ORD: Self = Self(8);
    pub const INVALID_CNTLID: Self = Self(9);
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::INVALID_PRIVATE_DATA_LENGTH => "invalid length of private data",
            Self::INVALID_RECORD_FORMAT => "invalid record format",
            Self::INVALID_QID => "invalid queue identifier",
            Self::INVALID_HSQSIZE => "invalid host send queue size",
            Self::INVALID_HRQSIZE => "invalid host receive queue size",
            Self::NO_RESOURCES => "no resources",
            Self::INVALID_IRD => "invalid IRD",
            Self::INVALID_ORD => "invalid ORD",
            Self::INVALID_CNTLID => "invalid controller identifier",
            Self(other) => return write!(f, "status {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_an_admin_queue() {
        let mut bytes = [0; 32];
        bytes[4..8].copy_from_slice(&[0x20, 0, 0x1F, 0]);
        assert_eq!(Request::new(0, 32, 0).as_bytes(), bytes);
        assert_eq!(Request::parse(&bytes).unwrap().commands(), 32);
    }

    #[test]
    fn request_of_an_io_queue() {
        let request = Request::new(1, 128, 1);
        assert_eq!(request.as_bytes()[..10], [0, 0, 1, 0, 0x80, 0, 0x7F, 0, 1, 0]);
        let mut padded = request.as_bytes().to_vec();
        padded.extend([0; 164]);
        assert_eq!(Request::parse(&padded), Ok(request));
        assert_eq!(
            request.to_string(),
            "NVMe/RDMA request: queue 1, 128 commands, 128 receives, controller 1"
        );
    }

    #[test]
    fn what_is_no_request_says_why() {
        assert_eq!(Request::parse(&[0; 31]), Err(RejectStatus::INVALID_PRIVATE_DATA_LENGTH));
        assert_eq!(Request::parse(&[1; 32]), Err(RejectStatus::INVALID_RECORD_FORMAT));
        let most = Request { hsqsize: u16::MAX.into(), ..Request::new(1, 1, 1) };
        assert_eq!(most.commands(), 65536);
    }

    #[test]
    fn reply_and_reject() {
        assert_eq!(Reply::new(32).as_bytes()[..4], [0, 0, 0x20, 0]);
        assert_eq!(Reply::parse(Reply::new(32).as_bytes()), Some(Reply::new(32)));
        assert_eq!(Reply::parse(&[0; 31]), None);
        assert_eq!(Reject::new(RejectStatus::INVALID_HSQSIZE).as_bytes(), [0, 0, 4, 0]);
        assert_eq!(Reject::parse(&[0, 0, 6, 0, 0]).unwrap().status(), RejectStatus::NO_RESOURCES);
        assert_eq!(RejectStatus(77).to_string(), "status 77");
    }
}
