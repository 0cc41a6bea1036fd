//! Who uses a block device: what has to be known before it is taken away.
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One use of a device.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    Mounted(PathBuf),
    Swap,
    /// Another block device stands on it: device mapper, RAID.
    HeldBy(String),
    OpenBy {
        pid: u32,
        name: String,
    },
    /// So many requests to it are under way. Whoever has closed it may still wait for them.
    Requests(u64),
    /// So many NBD clients are connected.
    NbdClients(usize),
    /// A virtual machine has it as its disk.
    Machine {
        pid: u32,
        name: String,
    },
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(at) => write!(f, "mounted at {}", at.display()),
            Self::Swap => f.write_str("used as swap"),
            Self::HeldBy(device) => write!(f, "held by {device}"),
            Self::OpenBy { pid, name } => write!(f, "open by {name} (process {pid})"),
            Self::Requests(count) => write!(f, "busy with {count} request(s)"),
            Self::NbdClients(count) => write!(f, "used by {count} NBD client(s)"),
            Self::Machine { pid: 0, .. } => f.write_str("used by a machine of another container"),
            Self::Machine { pid, name } => write!(f, "used by the machine {name} (process {pid})"),
        }
    }
}

/// Every use of the block device at `path` this process may see. A device that is gone has none.
#[must_use]
pub fn of(path: &Path) -> Vec<Use> {
    let Ok(metadata) = fs::metadata(path) else { return Vec::new() };
    let number = metadata.rdev();
    let number = format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut uses: Vec<_> = mounted(&mounts, &number, path).map(Use::Mounted).collect();
    if swaps
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().next().is_some_and(|it| Path::new(it) == path))
    {
        uses.push(Use::Swap);
    }
    let name = path.file_name().unwrap_or_default();
    let holders = fs::read_dir(Path::new("/sys/block").join(name).join("holders")).into_iter().flatten();
    uses.extend(holders.flatten().map(|holder| Use::HeldBy(holder.file_name().to_string_lossy().into())));
    uses.extend(open_by(path));
    let in_flight =
        fs::read_to_string(Path::new("/sys/block").join(name).join("inflight")).unwrap_or_default();
    let requests = requests(&in_flight);
    uses.extend((requests > 0).then_some(Use::Requests(requests)));
    uses
}

/// The sum of reads and writes, as the kernel writes them.
fn requests(in_flight: &str) -> u64 {
    in_flight.split_whitespace().filter_map(|count| count.parse::<u64>().ok()).sum()
}

/// Where a device is mounted, by its number or its name. The fields are those of proc(5).
fn mounted(mounts: &str, number: &str, path: &Path) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(move |line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(2);
        let (device, at) = (fields.next()?, fields.nth(1)?);
        let source = after.split(' ').nth(1)?;
        (device == number || Path::new(source) == path).then(|| unescape(at))
    })
}

/// `\040` and its like stand for characters that would end a field.
fn unescape(field: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    plain.iter().fold(field.to_owned(), |field, (code, character)| field.replace(code, character)).into()
}

fn open_by(path: &Path) -> impl Iterator<Item = Use> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        if pid == std::process::id() {
            return None;
        }
        let mut files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        files.find(|file| fs::read_link(file.path()).is_ok_and(|target| target == path))?;
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some(Use::OpenBy { pid, name: name.trim().into() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw
90 22 7:3 / /mnt/a\\040b rw - ext4 /dev/loop3 rw
91 22 0:44 / /mnt/c rw master:7 - btrfs /dev/loop3 rw
92 22 7:33 / /mnt/d rw - ext4 /dev/loop33 rw
";

    #[test]
    fn mounts_are_found_by_number_and_by_name() {
        let found: Vec<_> = mounted(MOUNTS, "7:3", Path::new("/dev/loop3")).collect();
        assert_eq!(found, [Path::new("/mnt/a b"), Path::new("/mnt/c")]);
        assert_eq!(mounted(MOUNTS, "7:4", Path::new("/dev/loop4")).count(), 0);
    }

    #[test]
    fn requests_under_way_are_counted() {
        assert_eq!(
            (requests("       3       12\n"), requests("       0        0\n"), requests("")),
            (15, 0, 0)
        );
    }

    #[test]
    fn an_open_file_is_found_at_its_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(fs::File::open("/dev/full").unwrap())
            .spawn()
            .unwrap();
        let found: Vec<_> = open_by(Path::new("/dev/full")).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().any(|found| matches!(found, Use::OpenBy { pid, .. } if *pid == child.id())));
        assert_eq!(of(Path::new("/dev/no-such-device")), []);
    }
}
