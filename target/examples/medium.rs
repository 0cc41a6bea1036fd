//! Drives one medium from one thread at a fixed depth, to see what a backend costs without a fabric:
//! `cargo run --release --example medium -- PATH [read|write] [DEPTH] [BYTES] [SECONDS]`.
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use ironside_common::memory::{Memory, Region};
use ironside_common::reactor::{Ring, clock};
use ironside_common::verbs::{Kind, Token};
use ironside_target::backend::{Backends, FileOptions, Medium, OpenMedium, Operation};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default| arguments.get(index).map_or(default, String::as_str);
    let path = arguments.first().context("no path is given")?;
    let writes = argument(1, "read") == "write";
    let depth: u16 = argument(2, "32").parse()?;
    let bytes: u32 = argument(3, "4096").parse()?;
    let seconds: u64 = argument(4, "5").parse()?;

    let medium = OpenMedium::file(Path::new(path), FileOptions::default())?;
    let memory = Memory::new();
    let lkey = memory.register(Region::new(usize::from(depth) * usize::try_from(bytes)?)?);
    let mut ring = Ring::new(256, Rc::clone(&memory))?;
    let registered = ring.register_region(lkey);
    let mut backends = Backends::new(Rc::clone(&memory), usize::from(depth));
    let namespace = backends.add(&medium, &mut ring)?;

    let blocks = medium.size() / u64::from(bytes);
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut submit = |backends: &mut Backends, slot: u16| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let offset = random % blocks * u64::from(bytes);
        let sge = memory.sge(lkey, u64::from(slot) * u64::from(bytes), bytes);
        let operation = match writes {
            true => Operation::Write { offset, from: sge, fua: false },
            false => Operation::Read { offset, into: sge },
        };
        backends.submit(Token { kind: Kind::Medium, generation: 0, qpair: 0, slot }, namespace, operation);
    };
    for slot in 0..depth {
        submit(&mut backends, slot);
    }
    let (start, mut operations) = (clock::now(), 0_u64);
    let end = start + Duration::from_secs(seconds);
    while clock::now() < end {
        backends.pump(&mut ring);
        ring.wait(None)?;
        while let Some((token, result)) = ring.reap() {
            backends.on_ring(token, result);
        }
        while let Some(done) = backends.poll() {
            done.result?;
            operations += 1;
            submit(&mut backends, done.token.slot);
        }
    }
    let rate = operations as f64 / (clock::now() - start).as_secs_f64();
    println!("direct {} registered {registered}: {rate:.0} operations a second", medium.direct());
    Ok(())
}
