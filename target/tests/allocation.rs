//! The way of an operation to a medium and back allocates nothing once the queues have been made.
//!
//! A test binary of its own, because its allocator counts.
use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use allocation_counter::measure;
use ironside_common::memory::{Memory, Region};
use ironside_common::reactor::Ring;
use ironside_common::verbs::{Kind, Token};
use ironside_target::backend::{Backends, FileOptions, Medium, OpenMedium, Operation};

const DEPTH: u16 = 32;

/// One of everything on each slot, to the end.
fn round(backends: &mut Backends, ring: &mut Ring, memory: &Memory, lkey: u32, namespaces: &[usize]) {
    for slot in 0..DEPTH {
        let namespace = namespaces[usize::from(slot) % namespaces.len()];
        let offset = u64::from(slot) * 4096;
        let buffer = memory.sge(lkey, offset, 4096);
        let operation = match slot % 5 {
            0 => Operation::Write { offset, from: buffer, fua: slot % 2 == 0 },
            1 => Operation::Flush,
            2 => Operation::WriteZeroes { offset, length: 4096, deallocate: true, fua: true },
            3 => Operation::Deallocate { offset, length: 4096 },
            _ => Operation::Read { offset, into: buffer },
        };
        backends.submit(Token { kind: Kind::Medium, generation: 0, qpair: 0, slot }, namespace, operation);
    }
    let mut done = 0;
    while done < DEPTH {
        if !backends.pump(ring) && ring.in_flight() > 0 {
            ring.wait(None).expect("the ring works");
        }
        while let Some((token, result)) = ring.reap() {
            backends.on_ring(token, result);
        }
        while let Some(one) = backends.poll() {
            assert_eq!(one.result, Ok(()));
            done += 1;
        }
    }
}

fn open(directory: &Path, name: &str, buffered: bool) -> OpenMedium {
    let path = directory.join(name);
    let file = File::create(&path).expect("the directory is ours");
    file.set_len(1 << 20).expect("the file is ours");
    OpenMedium::file(&path, FileOptions { buffered, ..FileOptions::default() }).expect("the file is there")
}

#[test]
fn operations_allocate_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let media = [
        open(directory.path(), "direct", false),
        open(directory.path(), "buffered", true),
        OpenMedium::ram(1 << 20, 512).unwrap(),
        OpenMedium::null(1 << 20, 512).unwrap(),
    ];
    let memory = Memory::new();
    let lkey = memory.register(Region::new(usize::from(DEPTH) * 4096).unwrap());
    let mut ring = Ring::new(u32::from(DEPTH), Rc::clone(&memory)).unwrap();
    ring.register_region(lkey);
    let mut backends = Backends::new(Rc::clone(&memory), usize::from(DEPTH));
    let namespaces = media.map(|medium| backends.add(&medium, &mut ring).unwrap());
    let counted = measure(|| {
        for _ in 0..10 {
            round(&mut backends, &mut ring, &memory, lkey, &namespaces);
        }
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
