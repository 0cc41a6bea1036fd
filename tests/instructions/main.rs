//! What a command costs the target in instructions, with fabric and medium mocked, by callgrind: no more than it did, and
//! no system call. `tests/instructions/run` runs it; allocations are for `tests/allocation` to forbid.
mod target;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use ironside_common::nvme::io::Request;
use ironside_common::nvme::{Command, DataPointer};
use ironside_common::verbs::Remote;

use self::target::{DEPTH, Target};

/// Commands of one measurement.
const COMMANDS: usize = 64;
const KEYED: Remote = Remote { address: 0x1000, rkey: 0x0001_0001 };

/// A target which has got its measure of such commands, and more of them, as many at once as said, with bytes behind.
struct Load {
    target: Target,
    commands: Vec<Command>,
    at_once: usize,
    in_capsule: u32,
}

fn load(request: Request, pointer: DataPointer, at_once: usize) -> Load {
    let in_capsule = if let DataPointer::InCapsule { length, .. } = pointer { length } else { 0 };
    let command = |cid: usize| request.to_command(cid as u16 % DEPTH, 1).with_data(pointer);
    let commands: Vec<Command> = (0..COMMANDS).map(command).collect();
    let mut target = Target::connected();
    // Queues grow to their size, and the code's pages are read, in the first rounds.
    commands.chunks(at_once).for_each(|some| target.serve(some, in_capsule));
    Load { target, commands, at_once, in_capsule }
}

fn read(at_once: usize) -> Load {
    let pointer = DataPointer::Keyed { remote: KEYED, length: 4096, invalidate: true };
    load(Request::Read { lba: 64, blocks: 8, fua: false }, pointer, at_once)
}

/// Its data in the capsule.
fn write(at_once: usize) -> Load {
    let pointer = DataPointer::InCapsule { offset: 0, length: 4096 };
    load(Request::Write { lba: 64, blocks: 8, fua: false }, pointer, at_once)
}

/// Its data to be fetched.
fn large_write(at_once: usize) -> Load {
    let pointer = DataPointer::Keyed { remote: KEYED, length: 16384, invalidate: true };
    load(Request::Write { lba: 64, blocks: 32, fua: false }, pointer, at_once)
}

/// Fails if so many instructions a command are exceeded by more than a twentieth, or if there is a system call.
fn limits(instructions_per_command: u64) -> LibraryBenchmarkConfig {
    let most = instructions_per_command * COMMANDS as u64 * 105 / 100;
    let mut callgrind = Callgrind::with_args(["--cache-sim=no", "--collect-systime=yes", "--dump-instr=yes"]);
    callgrind.hard_limits([(EventKind::Ir, most), (EventKind::SysCount, 0)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

#[library_benchmark]
#[bench::read_alone(args = (1), setup = read, config = limits(2_888))]
#[bench::read_of_many(args = (32), setup = read, config = limits(2_447))]
#[bench::write_alone(args = (1), setup = write, config = limits(2_630))]
#[bench::write_of_many(args = (32), setup = write, config = limits(2_189))]
#[bench::large_write_alone(args = (1), setup = large_write, config = limits(3_554))]
#[bench::large_write_of_many(args = (32), setup = large_write, config = limits(3_434))]
fn serve(mut load: Load) -> Load {
    for commands in load.commands.chunks(load.at_once) {
        load.target.serve(commands, load.in_capsule);
    }
    load
}

library_benchmark_group!(name = commands, benchmarks = serve);
main!(library_benchmark_groups = commands);
