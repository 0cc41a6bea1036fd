//! iWARP, NVMe/RDMA and NVMe as bytes, written down once more from the specifications and without our codecs, so
//! that a number which both of our ends have wrong is found.

/// MPA (RFC 5044): a Request's flags.
pub(crate) const MARKERS: u8 = 0x80;
pub(crate) const CRC: u8 = 0x40;
pub(crate) const REJECT: u8 = 0x20;
/// RFC 6581: four bytes of depths come before the private data.
pub(crate) const ENHANCED: u8 = 0x10;

/// The second byte of a DDP segment: RDMAP version 1 and the operation.
pub(crate) const WRITE: u8 = 0x40;
pub(crate) const READ_REQUEST: u8 = 0x41;
pub(crate) const READ_RESPONSE: u8 = 0x42;
pub(crate) const SEND: u8 = 0x43;
pub(crate) const SEND_INVALIDATE: u8 = 0x44;
pub(crate) const SEND_SOLICITED: u8 = 0x45;
pub(crate) const SEND_SOLICITED_INVALIDATE: u8 = 0x46;
pub(crate) const TERMINATE: u8 = 0x47;

/// The first byte of a DDP segment, version 1: tagged or not, last or not.
pub(crate) const TAGGED_LAST: u8 = 0xC1;
pub(crate) const TAGGED: u8 = 0x81;
pub(crate) const UNTAGGED_LAST: u8 = 0x41;
pub(crate) const UNTAGGED: u8 = 0x01;

/// An MPA Request of revision 2: IRD 16, ORD 0, nobody sends out of turn.
pub(crate) fn mpa_request(flags: u8, private_data: &[u8]) -> Vec<u8> {
    mpa_frame(b"MPA ID Req Frame", flags | ENHANCED, 2, &[&[0, 16, 0, 0], private_data].concat())
}

/// An MPA frame, whatever it says.
pub(crate) fn mpa_frame(key: &[u8; 16], flags: u8, revision: u8, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("private data is short");
    [&key[..], &[flags, revision], &length.to_be_bytes(), data].concat()
}

/// The private data by which a host asks for a queue; `hsqsize` is 0's based, `hrqsize` a count.
pub(crate) fn cm_request(qid: u16, hrqsize: u16, hsqsize: u16, cntlid: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0, qid, hrqsize, hsqsize, cntlid] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(32, 0);
    bytes
}

/// One bit at a time: polynomial 0x1EDC6F41, reflected; stored with the low byte first.
pub(crate) fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut state = u32::MAX;
    for &byte in bytes {
        state ^= u32::from(byte);
        for _ in 0..8 {
            state = if state & 1 == 1 { state >> 1 ^ 0x82F6_3B78 } else { state >> 1 };
        }
    }
    (!state).to_le_bytes()
}

/// An FPDU around a DDP segment: length, segment, zeros up to a multiple of four, CRC or zeros.
pub(crate) fn fpdu(segment: &[u8], crc: bool) -> Vec<u8> {
    let length = u16::try_from(segment.len()).expect("one FPDU's worth");
    let mut bytes = [&length.to_be_bytes()[..], segment].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let sum = if crc { crc32c(&bytes) } else { [0; 4] };
    bytes.extend(sum);
    bytes
}

pub(crate) fn tagged(control: u8, opcode: u8, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&[control, opcode][..], &stag.to_be_bytes(), &offset.to_be_bytes(), payload].concat()
}

/// `word` is the STag to invalidate, or reserved; then queue number, message sequence number, message offset.
pub(crate) fn untagged(control: u8, opcode: u8, word: u32, place: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![control, opcode];
    bytes.extend(word.to_be_bytes());
    bytes.extend(place.iter().flat_map(|number| number.to_be_bytes()));
    bytes.extend(payload);
    bytes
}

/// A whole Send.
pub(crate) fn send(sequence: u32, message: &[u8]) -> Vec<u8> {
    untagged(UNTAGGED_LAST, SEND, 0, [0, sequence, 0], message)
}

/// A Send with Invalidate.
pub(crate) fn send_invalidate(sequence: u32, stag: u32, message: &[u8]) -> Vec<u8> {
    untagged(UNTAGGED_LAST, SEND_INVALIDATE, stag, [0, sequence, 0], message)
}

/// Where an RDMA Read puts its bytes or takes them from: STag and tagged offset.
pub(crate) type At = (u32, u64);

pub(crate) fn read_request(sequence: u32, sink: At, length: u32, source: At) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(sink.0.to_be_bytes());
    body.extend(sink.1.to_be_bytes());
    body.extend(length.to_be_bytes());
    body.extend(source.0.to_be_bytes());
    body.extend(source.1.to_be_bytes());
    untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, sequence, 0], &body)
}

/// A DDP segment of the endpoint under test.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Segment(pub(crate) Vec<u8>);

impl Segment {
    pub(crate) fn control(&self) -> u8 {
        self.0[0]
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.0[1]
    }

    pub(crate) fn is_tagged(&self) -> bool {
        self.control() & 0x80 != 0
    }

    pub(crate) fn is_last(&self) -> bool {
        self.control() & 0x40 != 0
    }

    /// Of a tagged one.
    pub(crate) fn at(&self) -> At {
        (be32(&self.0, 2), be64(&self.0, 6))
    }

    /// Of an untagged one: queue number, message sequence number, message offset.
    pub(crate) fn place(&self) -> [u32; 3] {
        [be32(&self.0, 6), be32(&self.0, 10), be32(&self.0, 14)]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.0[if self.is_tagged() { 14 } else { 18 }..]
    }

    /// Of a Read Request: sink, length, source.
    pub(crate) fn read(&self) -> (At, u32, At) {
        let body = self.payload();
        assert_eq!(body.len(), 28, "the body of a Read Request");
        ((be32(body, 0), be64(body, 4)), be32(body, 12), (be32(body, 16), be64(body, 20)))
    }
}

/// Takes a whole FPDU from the front of `stream`, whose padding and CRC have to be right.
pub(crate) fn take_fpdu(stream: &mut Vec<u8>, crc: bool) -> Option<Segment> {
    let length = usize::from(u16::from_be_bytes([*stream.first()?, *stream.get(1)?]));
    let covered = (2 + length).next_multiple_of(4);
    if stream.len() < covered + 4 {
        return None;
    }
    let bytes: Vec<u8> = stream.drain(..covered + 4).collect();
    assert!(bytes[2 + length..covered].iter().all(|&byte| byte == 0), "padding is zero");
    let sum = if crc { crc32c(&bytes[..covered]) } else { [0; 4] };
    assert_eq!(bytes[covered..], sum, "the CRC of an FPDU of {length} bytes");
    Some(Segment(bytes[2..2 + length].to_vec()))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A little-endian number of `size` bytes.
pub(crate) fn le(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// A submission queue entry, its data pointer a keyed data block of nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sqe(pub(crate) [u8; 64]);

impl Sqe {
    pub(crate) fn new(opcode: u8) -> Self {
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        bytes[1] = 0x40;
        bytes[39] = 0x40;
        Self(bytes)
    }

    /// A Fabrics command.
    pub(crate) fn fabrics(kind: u8) -> Self {
        Self::new(0x7F).byte(4, kind)
    }

    pub(crate) fn byte(mut self, at: usize, value: u8) -> Self {
        self.0[at] = value;
        self
    }

    pub(crate) fn word(mut self, at: usize, value: u16) -> Self {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn dword(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn qword(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn nsid(self, nsid: u32) -> Self {
        self.dword(4, nsid)
    }

    pub(crate) fn sgl(mut self, sgl: [u8; 16]) -> Self {
        self.0[24..40].copy_from_slice(&sgl);
        self
    }
}

/// Keyed SGL data block: 64 bits of address, 24 of length, 32 of key, then type and subtype.
pub(crate) fn keyed_sgl(at: At, length: u32, identifier: u8) -> [u8; 16] {
    let mut sgl = [0; 16];
    sgl[..8].copy_from_slice(&at.1.to_le_bytes());
    sgl[8..11].copy_from_slice(&length.to_le_bytes()[..3]);
    sgl[11..15].copy_from_slice(&at.0.to_le_bytes());
    sgl[15] = identifier;
    sgl
}

/// SGL data block whose address is an offset within the capsule.
pub(crate) fn capsule_sgl(offset: u64, length: u32) -> [u8; 16] {
    let mut sgl = [0; 16];
    sgl[..8].copy_from_slice(&offset.to_le_bytes());
    sgl[8..12].copy_from_slice(&length.to_le_bytes());
    sgl[15] = 0x01;
    sgl
}

/// A name in its field of 256 bytes.
pub(crate) fn name(text: &str) -> [u8; 256] {
    let mut field = [0; 256];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

/// The data of a Connect command.
pub(crate) fn connect_data(host_id: [u8; 16], cntlid: u16, subsystem: &str, host: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[..16].copy_from_slice(&host_id);
    data[16..18].copy_from_slice(&cntlid.to_le_bytes());
    data[256..512].copy_from_slice(&name(subsystem));
    data[512..768].copy_from_slice(&name(host));
    data
}

/// A Connect command.
pub(crate) fn connect(qid: u16, sqsize: u16, kato_ms: u32) -> Sqe {
    Sqe::fabrics(0x01).word(42, qid).word(44, sqsize).dword(48, kato_ms)
}

/// Property Get, and Property Set of four bytes.
pub(crate) fn property_get(offset: u32, size: u8) -> Sqe {
    Sqe::fabrics(0x04).byte(40, size).dword(44, offset)
}

pub(crate) fn property_set(offset: u32, value: u64) -> Sqe {
    Sqe::fabrics(0x00).dword(44, offset).qword(48, value)
}
