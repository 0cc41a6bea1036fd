//! The target which the suite measures: a daemon of our own, with one reactor and a volume in memory.
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ironside_common::nvme::Nqn;
use ironside_common::size::Size;
use ironside_common::verbs::Address;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use tempfile::TempDir;

use super::{OnOff, PerfArgs, Setup, attach};

/// The target's volume.
pub(super) const VOLUME: &str = "ram:1GiB";
const TARGET_CORE: usize = 1;
/// How long idleness is watched.
const IDLE: Duration = Duration::from_secs(5);

/// The daemon, on a core of its own.
pub(super) struct Target {
    process: Child,
    pub(super) address: Address,
    pub(super) nqn: Nqn,
    /// Where its socket is, if it has one.
    _directory: TempDir,
}

impl Target {
    pub(super) fn start(setup: &Setup) -> anyhow::Result<Self> {
        let crc = if setup.crc == OnOff::On { "on" } else { "off" };
        let directory = tempfile::tempdir()?;
        let listen = if setup.by_socket {
            directory.path().join("ironside.sock").display().to_string()
        } else {
            // A port nobody has at the moment; the next to bind it is the target.
            TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string()
        };
        let mut command = Command::new(sibling("ironside-target")?);
        command.args(["serve", "--listen", &listen, "--namespace", VOLUME, "--reactors", "1"]);
        command.args(["--allow-any-host", "--queue-depth", "256", "--crc", crc]).stdout(Stdio::piped());
        command.env("IRONSIDE_LOG", "error");
        let mut process = on_core(TARGET_CORE, || command.spawn())?.context("starting the target")?;
        let output = process.stdout.take().context("the target's output was asked for")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let mut words = line.split_whitespace();
        if words.next() != Some("ready") {
            bail!("the target did not become ready; it said {line:?}");
        }
        let words: Vec<_> = words.collect();
        let address =
            words.iter().find_map(|word| word.parse().ok()).context("no address in the ready line")?;
        let nqn = words.iter().find_map(|word| word.parse().ok()).context("no NQN in the ready line")?;
        Ok(Self { process, address, nqn, _directory: directory })
    }

    /// Processor time it has used, in seconds.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        cpu_seconds(self.process.id())
    }

    /// What target and host use when four connections stand and nobody asks for anything.
    pub(super) fn watch_idle(&self, args: &PerfArgs) -> anyhow::Result<String> {
        let args = PerfArgs { nr_io_queues: 3, queue_size: 128, core: None, ..args.clone() };
        let attached = attach(&args, self.address, self.nqn)?;
        thread::sleep(Duration::from_secs(1));
        let own = std::process::id();
        let before = (cpu_seconds(self.process.id())?, cpu_seconds(own)?);
        thread::sleep(IDLE);
        let after = (cpu_seconds(self.process.id())?, cpu_seconds(own)?);
        let percent = |before: f64, after: f64| 100.0 * (after - before) / IDLE.as_secs_f64();
        let text = format!(
            "Idle, four connections: target {:.2} % of a core, attached host {:.2} %; target resident {}",
            percent(before.0, after.0),
            percent(before.1, after.1),
            Size(resident_bytes(self.process.id())?),
        );
        attached.close();
        Ok(text)
    }

    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(i32::try_from(self.process.id())?), Signal::SIGTERM)?;
        let status = self.process.wait()?;
        if !status.success() {
            bail!("the target ended badly: {status}");
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // After a regular end there is nothing left to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program of that name beside this one.
fn sibling(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if !path.exists() {
        bail!("{} is missing; build it first", path.display());
    }
    Ok(path)
}

/// Acts with this thread on a core, which a process started there inherits.
fn on_core<R>(core: usize, act: impl FnOnce() -> R) -> anyhow::Result<R> {
    let this_thread = Pid::from_raw(0);
    let before = sched_getaffinity(this_thread)?;
    let mut only = CpuSet::new();
    only.set(core)?;
    if !before.is_set(core)? {
        return Ok(act());
    }
    sched_setaffinity(this_thread, &only)?;
    let result = act();
    sched_setaffinity(this_thread, &before)?;
    Ok(result)
}

/// Processor time a process has used; see proc(5).
pub(super) fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("an unknown form of /proc/…/stat")?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock ticks")?;
    Ok((user + system) / per_second as f64)
}

fn resident_bytes(process: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? << 10)
}
