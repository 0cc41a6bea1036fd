//! The initiator as a library, against the real target: a program's own memory, lent where it lies and by bounce buffers.
use std::net::SocketAddr;

use ironside_common::memory::{Lendable, Pages};
use ironside_initiator::attach::{AttachOptions, Attached, Direct, RegisterError, Registered, Registration};
use ironside_initiator::host::HostOptions;
use ironside_initiator::volume::IoError;
use ironside_tests::support::programs::Target;
use tempfile::TempDir;
use uuid::Uuid;

/// A target with 8 MiB, and our way to it.
struct Library {
    attached: Attached,
    _target: Target,
    _place: TempDir,
}

impl Library {
    fn new(registration: Registration) -> Self {
        let place = tempfile::tempdir().unwrap();
        let target = Target::serve(place.path(), &["ram:8MiB,lba=512"]);
        let address = SocketAddr::from(([127, 0, 0, 1], target.port));
        let host_nqn = "nqn.2014-08.org.example:library".parse().unwrap();
        let host =
            HostOptions::new(address.into(), target.nqn.parse().unwrap(), host_nqn, Uuid::from_u128(7));
        let options = AttachOptions { registration, ..AttachOptions::new(host) };
        Self { attached: Attached::attach(options).unwrap(), _target: target, _place: place }
    }

    fn open(&self) -> Direct {
        self.attached.open(1).unwrap()
    }
}

fn register<B: Lendable>(volume: &Direct, memory: B) -> Registered<B> {
    volume.register(memory).unwrap()
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at >> 9) as u8 ^ at as u8 ^ seed).collect()
}

#[test]
fn memory_goes_both_ways_where_it_lies_and_by_bounce_buffers() {
    for (seed, registration) in
        [Registration::Window, Registration::Pool, Registration::Dynamic].into_iter().enumerate()
    {
        let library = Library::new(registration);
        let volume = library.open();
        // One that fits a capsule, one of a command, and one of several.
        for (place, length) in [(0, 4096), (1 << 20, 1 << 16), (2 << 20, 3 << 20)] {
            let bytes = pattern(length, seed as u8);
            let mut pages = register(&volume, Pages::zeroed(length));
            pages.copy_from_slice(&bytes);
            assert!(pages.is_in_place());
            let (mut pages, written) = volume.write(place, pages, false).wait();
            assert_eq!(written, Ok(()));
            pages.fill(0);
            let (pages, read) = volume.read(place, pages).wait();
            assert_eq!(read, Ok(()));
            assert!(pages[..] == bytes[..], "{registration:?} {length}");
            // Memory which is not whole pages, to read what the other wrote, and the other way round.
            let unaligned = register(&volume, vec![0; length + 512]);
            assert!(!unaligned.is_in_place());
            let (mut unaligned, read) = volume.read(place, unaligned).wait();
            assert_eq!(read, Ok(()));
            assert!(unaligned[..length] == bytes[..]);
            unaligned.reverse();
            let (unaligned, written) = volume.write(place, unaligned, true).wait();
            assert_eq!(written, Ok(()));
            let (pages, read) = volume.read(place, pages).wait();
            assert_eq!(read, Ok(()));
            assert!(pages[..] == unaligned[..length]);
            assert_eq!(unaligned.into_inner().len(), length + 512);
            assert_eq!(pages.into_inner().len(), length);
        }
        assert_eq!(volume.flush(), Ok(()));
        library.attached.close();
    }
}

#[test]
fn several_requests_are_under_way_at_once_and_their_memory_comes_back_with_their_errors() {
    let library = Library::new(Registration::Window);
    let volume = library.open();
    let size = volume.geometry().size;
    let writes: Vec<_> = (0..64)
        .map(|number| {
            let mut pages = register(&volume, Pages::zeroed(8192));
            pages.fill(number);
            volume.write(u64::from(number) * 8192, pages, false)
        })
        .collect();
    let beyond = volume.read(size, register(&volume, Pages::zeroed(4096)));
    for (number, write) in (0..).zip(writes) {
        let (pages, written) = write.wait();
        assert_eq!((written, pages[8191]), (Ok(()), number));
    }
    let (pages, read) = beyond.wait();
    assert_eq!((read, pages.into_inner().len()), (Err(IoError::OutOfRange), 4096));
    let (_, read) = volume.read(1, register(&volume, vec![0; 512])).wait();
    assert_eq!(read, Err(IoError::Invalid));
    assert!(matches!(volume.register(Vec::new()), Err(RegisterError::Length(0))));
    // Nobody waits for this one.
    drop(volume.write(0, register(&volume, Pages::zeroed(1 << 20)), false));
    let (all, read) = volume.read(0, register(&volume, Pages::zeroed(1 << 20))).wait();
    assert_eq!((read, all[0]), (Ok(()), 0));
}

#[test]
fn memory_comes_back_when_its_controller_has_gone() {
    let Library { attached, _target: target, _place: place } = Library::new(Registration::Window);
    let volume = attached.open(1).unwrap();
    let idle = register(&volume, Pages::zeroed(4096));
    target.crash();
    let stuck = volume.read(0, register(&volume, Pages::zeroed(4096)));
    attached.close();
    let (pages, read) = stuck.wait();
    assert_eq!((read, pages.into_inner().len()), (Err(IoError::Closing), 4096));
    let (idle, read) = volume.read(0, idle).wait();
    assert_eq!((read, idle.into_inner().len()), (Err(IoError::Closing), 4096));
    assert!(matches!(volume.register(vec![1]), Err(RegisterError::Gone)));
    drop(place);
}
