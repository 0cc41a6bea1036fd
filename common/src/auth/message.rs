//! The messages of DH-HMAC-CHAP as they lie in the data of Authentication Send and Authentication Receive (NVM Express
//! base specification 2.2, 8.3.4.5). Parsed once; the bytes in them keep the lengths they claim.
use std::fmt;

use super::{Group, Hash};

/// More bytes than any message has.
pub const MESSAGE_MAX: usize = 2048;

const COMMON: u8 = 0;
const DH_HMAC_CHAP: u8 = 1;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xF0;
const FAILURE1: u8 = 0xF1;

/// Bytes in front of the variable part of a message.
const HEADER: usize = 16;
const DESCRIPTORS: usize = 8;
const DESCRIPTOR: usize = 64;
/// In a descriptor, where the hashes and the groups begin, and how many of each there can be.
const HASHES: usize = 4;
const GROUPS: usize = 34;
const IDS_MAX: usize = 30;
/// The only reason there is to fail; the explanation says more.
const AUTHENTICATION_FAILED: u8 = 1;

/// Why an authentication failed, as a message says it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Explanation(pub u8);

impl Explanation {
    pub const FAILED: Self = Self(1);
    pub const PROTOCOL_UNUSABLE: Self = Self(2);
    pub const CONCATENATION_MISMATCH: Self = Self(3);
    pub const HASH_UNUSABLE: Self = Self(4);
    pub const GROUP_UNUSABLE: Self = Self(5);
    pub const INCORRECT_PAYLOAD: Self = Self(6);
    pub const INCORRECT_MESSAGE: Self = Self(7);
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::FAILED => "authentication failed: the two ends do not have the same key",
            Self::PROTOCOL_UNUSABLE => "no authentication protocol is common to both ends",
            Self::CONCATENATION_MISMATCH => "one end wants a secure channel and the other does not",
            Self::HASH_UNUSABLE => "no hash function is common to both ends",
            Self::GROUP_UNUSABLE => "no Diffie-Hellman group is common to both ends",
            Self::INCORRECT_PAYLOAD => "a message was malformed",
            Self::INCORRECT_MESSAGE => "a message came at the wrong time",
            Self(other) => return write!(f, "explanation {other:#04x}"),
        })
    }
}

/// What a host sends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum HostMessage {
    Negotiate(Negotiate),
    Reply(Reply),
    Success2 { t_id: u16 },
    Failure2 { t_id: u16, explanation: Explanation },
}

/// What a controller sends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ControllerMessage {
    Challenge(Challenge),
    Success1 { t_id: u16, response: Option<Vec<u8>> },
    Failure1 { t_id: u16, explanation: Explanation },
}

/// What a host can do. Unknown numbers among the lists are left out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Negotiate {
    pub t_id: u16,
    /// SC_C: whether and how a secure channel is to be made of it.
    pub secure_channel: u8,
    /// Whether DH-HMAC-CHAP is among the protocols at all.
    pub offers_protocol: bool,
    pub hashes: Vec<Hash>,
    pub groups: Vec<Group>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Challenge {
    pub t_id: u16,
    pub hash: u8,
    pub group: u8,
    pub sequence: u32,
    pub challenge: Vec<u8>,
    pub public: Vec<u8>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reply {
    pub t_id: u16,
    pub sequence: u32,
    pub response: Vec<u8>,
    /// For the controller to answer, if the host wants it to authenticate too.
    pub challenge: Option<Vec<u8>>,
    pub public: Vec<u8>,
}

impl HostMessage {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Explanation> {
        let message = Fields::of(bytes)?;
        match message.kind() {
            (COMMON, NEGOTIATE) => Negotiate::parse(&message).map(Self::Negotiate),
            (DH_HMAC_CHAP, REPLY) => Reply::parse(&message).map(Self::Reply),
            (DH_HMAC_CHAP, SUCCESS2) => {
                message.bytes(HEADER - 1, 1)?;
                Ok(Self::Success2 { t_id: message.t_id() })
            }
            (COMMON, FAILURE2) => {
                Ok(Self::Failure2 { t_id: message.t_id(), explanation: message.explanation() })
            }
            _ => Err(Explanation::INCORRECT_MESSAGE),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Negotiate(negotiate) => negotiate.to_bytes(),
            Self::Reply(reply) => reply.to_bytes(),
            Self::Success2 { t_id } => header(DH_HMAC_CHAP, SUCCESS2, *t_id).to_vec(),
            Self::Failure2 { t_id, explanation } => failure(FAILURE2, *t_id, *explanation),
        }
    }
}

impl ControllerMessage {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Explanation> {
        let message = Fields::of(bytes)?;
        match message.kind() {
            (DH_HMAC_CHAP, CHALLENGE) => Challenge::parse(&message).map(Self::Challenge),
            (DH_HMAC_CHAP, SUCCESS1) => {
                let length = message.bytes(6, 1)?[0].into();
                let is_valid = is_valid(message.bytes(8, 1)?[0])?;
                message.bytes(HEADER - 1, 1)?;
                let response = is_valid.then(|| message.bytes(HEADER, length)).transpose()?;
                Ok(Self::Success1 { t_id: message.t_id(), response: response.map(<[u8]>::to_vec) })
            }
            (COMMON, FAILURE1) => {
                Ok(Self::Failure1 { t_id: message.t_id(), explanation: message.explanation() })
            }
            _ => Err(Explanation::INCORRECT_MESSAGE),
        }
    }

    /// `hash_length` is that of the hash agreed upon.
    pub(super) fn to_bytes(&self, hash_length: usize) -> Vec<u8> {
        match self {
            Self::Challenge(challenge) => challenge.to_bytes(),
            Self::Success1 { t_id, response } => {
                let mut bytes = header(DH_HMAC_CHAP, SUCCESS1, *t_id);
                bytes[6] = length_byte(hash_length);
                bytes[8] = response.is_some().into();
                [&bytes[..], response.as_deref().unwrap_or_default()].concat()
            }
            Self::Failure1 { t_id, explanation } => failure(FAILURE1, *t_id, *explanation),
        }
    }
}

impl Negotiate {
    fn parse(message: &Fields<'_>) -> Result<Self, Explanation> {
        let [secure_channel, protocols] = *message.bytes(6, 2)? else { unreachable!("two were asked for") };
        let mut negotiate = Self {
            t_id: message.t_id(),
            secure_channel,
            offers_protocol: false,
            hashes: Vec::new(),
            groups: Vec::new(),
        };
        for index in 0..usize::from(protocols) {
            let descriptor = message.bytes(DESCRIPTORS + index * DESCRIPTOR, DESCRIPTOR)?;
            if descriptor[0] != DH_HMAC_CHAP || negotiate.offers_protocol {
                continue;
            }
            let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
            if hashes > IDS_MAX || groups > IDS_MAX {
                return Err(Explanation::INCORRECT_PAYLOAD);
            }
            let ids = |from: usize, count| descriptor[from..][..count].iter().copied();
            negotiate.offers_protocol = true;
            negotiate.hashes = ids(HASHES, hashes).filter_map(Hash::from_id).collect();
            negotiate.groups = ids(GROUPS, groups).filter_map(Group::from_id).collect();
        }
        Ok(negotiate)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header(COMMON, NEGOTIATE, self.t_id)[..DESCRIPTORS].to_vec();
        bytes[6] = self.secure_channel;
        bytes[7] = self.offers_protocol.into();
        let mut descriptor = [0; DESCRIPTOR];
        descriptor[0] = DH_HMAC_CHAP;
        descriptor[2] = length_byte(self.hashes.len());
        descriptor[3] = length_byte(self.groups.len());
        let hashes = self.hashes.iter().map(|hash| hash.id());
        let groups = self.groups.iter().map(|group| group.id());
        descriptor[HASHES..].iter_mut().zip(hashes).for_each(|(place, id)| *place = id);
        descriptor[GROUPS..].iter_mut().zip(groups).for_each(|(place, id)| *place = id);
        bytes.extend(descriptor);
        bytes
    }
}

impl Challenge {
    fn parse(message: &Fields<'_>) -> Result<Self, Explanation> {
        let [length, _, hash, group] = *message.bytes(6, 4)? else { unreachable!("four were asked for") };
        let (length, public_length) = (usize::from(length), message.word(10)?);
        Ok(Self {
            t_id: message.t_id(),
            hash,
            group,
            sequence: message.dword(12)?,
            challenge: message.bytes(HEADER, length)?.to_vec(),
            public: message.bytes(HEADER + length, public_length.into())?.to_vec(),
        })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header(DH_HMAC_CHAP, CHALLENGE, self.t_id);
        bytes[6] = length_byte(self.challenge.len());
        bytes[8] = self.hash;
        bytes[9] = self.group;
        put_public_length(&mut bytes, &self.public);
        bytes[12..].copy_from_slice(&self.sequence.to_le_bytes());
        [&bytes[..], &self.challenge, &self.public].concat()
    }
}

impl Reply {
    fn parse(message: &Fields<'_>) -> Result<Self, Explanation> {
        let [length, _, valid] = *message.bytes(6, 3)? else { unreachable!("three were asked for") };
        let (length, public_length) = (usize::from(length), message.word(10)?);
        let challenge = message.bytes(HEADER + length, length)?;
        Ok(Self {
            t_id: message.t_id(),
            sequence: message.dword(12)?,
            response: message.bytes(HEADER, length)?.to_vec(),
            challenge: is_valid(valid)?.then(|| challenge.to_vec()),
            public: message.bytes(HEADER + 2 * length, public_length.into())?.to_vec(),
        })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header(DH_HMAC_CHAP, REPLY, self.t_id);
        bytes[6] = length_byte(self.response.len());
        bytes[8] = self.challenge.is_some().into();
        put_public_length(&mut bytes, &self.public);
        bytes[12..].copy_from_slice(&self.sequence.to_le_bytes());
        let nothing = vec![0; self.response.len()];
        let challenge = self.challenge.as_ref().unwrap_or(&nothing);
        [&bytes[..], &self.response, challenge, &self.public].concat()
    }
}

/// A message of at least eight bytes, by offset.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, Explanation> {
        if bytes.len() < DESCRIPTORS { Err(Explanation::INCORRECT_PAYLOAD) } else { Ok(Self(bytes)) }
    }

    /// AUTH_TYPE and AUTH_ID.
    fn kind(&self) -> (u8, u8) {
        (self.0[0], self.0[1])
    }

    fn t_id(&self) -> u16 {
        u16::from_le_bytes([self.0[4], self.0[5]])
    }

    fn explanation(&self) -> Explanation {
        Explanation(self.0[7])
    }

    fn bytes(&self, at: usize, length: usize) -> Result<&'a [u8], Explanation> {
        let end = at.checked_add(length).ok_or(Explanation::INCORRECT_PAYLOAD)?;
        self.0.get(at..end).ok_or(Explanation::INCORRECT_PAYLOAD)
    }

    fn word(&self, at: usize) -> Result<u16, Explanation> {
        let bytes = self.bytes(at, 2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn dword(&self, at: usize) -> Result<u32, Explanation> {
        let bytes = self.bytes(at, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
}

/// CVALID and RVALID: other values than these two are reserved.
const fn is_valid(value: u8) -> Result<bool, Explanation> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Explanation::INCORRECT_PAYLOAD),
    }
}

fn header(kind: u8, id: u8, t_id: u16) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = kind;
    bytes[1] = id;
    bytes[4..6].copy_from_slice(&t_id.to_le_bytes());
    bytes
}

fn failure(id: u8, t_id: u16, explanation: Explanation) -> Vec<u8> {
    let mut bytes = header(COMMON, id, t_id);
    bytes[6] = AUTHENTICATION_FAILED;
    bytes[7] = explanation.0;
    bytes.to_vec()
}

fn put_public_length(bytes: &mut [u8; HEADER], public: &[u8]) {
    let length = u16::try_from(public.len()).expect("the largest group has 1024 bytes");
    bytes[10..12].copy_from_slice(&length.to_le_bytes());
}

fn length_byte(length: usize) -> u8 {
    u8::try_from(length).expect("hashes and lists are shorter than 256")
}
