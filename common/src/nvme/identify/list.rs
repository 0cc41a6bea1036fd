//! Lists which Identify returns: namespace identifiers (CNS 02 and 07), descriptors of one namespace (CNS 03),
//! controllers (CNS 12 and 13) and command sets (CNS 1C).
use std::fmt;

use uuid::Uuid;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

/// Most identifiers in one list, of namespaces and of controllers.
const ACTIVE_MAX: usize = 1024;
const CONTROLLERS_MAX: usize = 2047;

/// What a list of active namespaces says.
#[derive(Clone, Copy, Debug)]
pub struct ActiveNamespaces<'a>(&'a [U32]);

impl ActiveNamespaces<'_> {
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|nsid| nsid.get())
    }

    /// From which identifier to ask on; `None` if the list ended.
    #[must_use]
    pub fn next_from(&self) -> Option<u32> {
        if self.0.len() < ACTIVE_MAX { None } else { self.0.last().map(|nsid| nsid.get()) }
    }
}

/// Reads a list of active namespaces: up to the first zero.
#[must_use]
pub fn active_namespaces(data: &[u8]) -> ActiveNamespaces<'_> {
    let count = (data.len() / size_of::<U32>()).min(ACTIVE_MAX);
    let list = <[U32]>::ref_from_prefix_with_elems(data, count).map_or(&[][..], |(list, _)| list);
    let end = list.iter().position(|nsid| nsid.get() == 0).unwrap_or(list.len());
    ActiveNamespaces(&list[..end])
}

/// Writes the identifiers above `after` of `ascending`, as many as there is room for; the rest of `data` is
/// cleared.
pub fn write_active_namespaces(data: &mut [u8], after: u32, ascending: impl Iterator<Item = u32>) {
    data.fill(0);
    for (slot, nsid) in data.chunks_exact_mut(4).take(ACTIVE_MAX).zip(ascending.filter(|&n| n > after)) {
        slot.copy_from_slice(&nsid.to_le_bytes());
    }
}

/// Writes a list of controllers, as many as there is room for; the rest of `data` is cleared.
pub fn write_controllers(data: &mut [u8], ascending: &[u16]) {
    data.fill(0);
    let listed = &ascending[..ascending.len().min(CONTROLLERS_MAX)];
    let count = u16::try_from(listed.len()).expect("a list has a limit");
    for (slot, value) in data.chunks_exact_mut(2).zip([count].iter().chain(listed)) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

/// Writes the combinations of command sets there are: the NVM command set alone.
pub fn command_sets(data: &mut [u8]) {
    data.fill(0);
    for (to, from) in data.iter_mut().zip(U64::from(1).to_bytes()) {
        *to = from;
    }
}

/// Bytes before the value of a descriptor.
pub const DESCRIPTOR_HEAD: usize = 4;

/// One name of a namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Descriptor<'a> {
    Eui64([u8; 8]),
    Nguid(Uuid),
    Uuid(Uuid),
    /// Its command set; 0 is NVM.
    CommandSet(u8),
    Unknown {
        kind: u8,
        value: &'a [u8],
    },
}

impl fmt::Display for Descriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eui64(eui64) => write!(f, "EUI64 {:016x}", u64::from_be_bytes(*eui64)),
            Self::Nguid(nguid) => write!(f, "NGUID {}", nguid.simple()),
            Self::Uuid(uuid) => write!(f, "UUID {uuid}"),
            Self::CommandSet(csi) => write!(f, "command set {csi}"),
            Self::Unknown { kind, value } => write!(f, "descriptor {kind} of {} bytes", value.len()),
        }
    }
}

/// Reads a list of descriptors, up to the one which is empty or reaches beyond the list.
pub fn descriptors(data: &[u8]) -> impl Iterator<Item = Descriptor<'_>> {
    let mut rest = data;
    std::iter::from_fn(move || {
        let (&[kind, length, _, _], behind) = rest.split_first_chunk()?;
        let (value, behind) = behind.split_at_checked(length.into())?;
        rest = behind;
        (length != 0).then(|| parse(kind, value))
    })
}

fn parse(kind: u8, value: &[u8]) -> Descriptor<'_> {
    match (kind, value.len()) {
        (1, 8) => value.try_into().map(Descriptor::Eui64),
        (2, 16) => value.try_into().map(|bytes| Descriptor::Nguid(Uuid::from_bytes(bytes))),
        (3, 16) => value.try_into().map(|bytes| Descriptor::Uuid(Uuid::from_bytes(bytes))),
        (4, 1) => Ok(Descriptor::CommandSet(value[0])),
        _ => Ok(Descriptor::Unknown { kind, value }),
    }
    .unwrap_or(Descriptor::Unknown { kind, value })
}

/// Writes a list of descriptors.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    rest: &'a mut [u8],
}

impl<'a> DescriptorWriter<'a> {
    /// Clears `data`, so that the list ends wherever the last descriptor does.
    pub fn new(data: &'a mut [u8]) -> Self {
        data.fill(0);
        Self { rest: data }
    }

    /// # Panics
    /// If there is no room: 4096 bytes have it for one of each kind many times over.
    pub fn push(&mut self, descriptor: &Descriptor<'_>) {
        match descriptor {
            Descriptor::Eui64(eui64) => self.put(1, eui64),
            Descriptor::Nguid(nguid) => self.put(2, nguid.as_bytes()),
            Descriptor::Uuid(uuid) => self.put(3, uuid.as_bytes()),
            Descriptor::CommandSet(csi) => self.put(4, &[*csi]),
            Descriptor::Unknown { kind, value } => self.put(*kind, value),
        }
    }

    fn put(&mut self, kind: u8, value: &[u8]) {
        let length = u8::try_from(value.len()).expect("a descriptor's length has 8 bits");
        let (head, rest) = std::mem::take(&mut self.rest).split_at_mut(DESCRIPTOR_HEAD + value.len());
        head[..2].copy_from_slice(&[kind, length]);
        head[DESCRIPTOR_HEAD..].copy_from_slice(value);
        self.rest = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_namespaces_goes_on_behind_the_last() {
        let mut data = [0xFF; 4096];
        write_active_namespaces(&mut data, 0, 1..=1500);
        let list = active_namespaces(&data);
        assert!(list.iter().eq(1..=1024));
        assert_eq!(list.next_from(), Some(1024));
        write_active_namespaces(&mut data, 1024, 1..=1500);
        let list = active_namespaces(&data);
        assert!(list.iter().eq(1025..=1500));
        assert_eq!(list.next_from(), None);
        assert!(active_namespaces(&[1, 0, 0, 0, 9]).iter().eq([1]));
        assert_eq!(active_namespaces(&[]).iter().count(), 0);
    }

    #[test]
    fn descriptors_survive_their_list() {
        let mut data = [0xFF; 4096];
        let list = [
            Descriptor::Uuid(Uuid::from_u128(1)),
            Descriptor::Nguid(Uuid::from_u128(2)),
            Descriptor::Eui64([3; 8]),
            Descriptor::CommandSet(0),
            Descriptor::Unknown { kind: 2, value: &[1, 2, 3] },
        ];
        let mut writer = DescriptorWriter::new(&mut data);
        list.iter().for_each(|descriptor| writer.push(descriptor));
        assert!(descriptors(&data).eq(list));
        assert_eq!(data[..4], [3, 16, 0, 0]);
    }

    #[test]
    fn a_descriptor_beyond_its_list_ends_it() {
        assert_eq!(descriptors(&[3, 16, 0, 0, 1, 2]).count(), 0);
        assert_eq!(descriptors(&[4, 1, 0]).count(), 0);
        assert_eq!(descriptors(&[4, 1, 0, 0, 0]).count(), 1);
        assert_eq!(descriptors(&[0xFF; 4096]).count(), 15);
    }

    #[test]
    fn the_nvm_command_set_is_the_only_one() {
        let mut data = [0xFF; 4096];
        command_sets(&mut data);
        assert_eq!((data[0], data[1..].iter().all(|&byte| byte == 0)), (1, true));
    }
}
