//! Where a machine says how it is, and what it lets a program do with memory.
use std::fs;
use std::path::{Path, PathBuf};

use ironside_common::memory::HugePagesThere;
use ironside_common::size::Size;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::Finding;
use crate::cli::daemon::Machine as Ways;

/// What buffers of an attachment an adapter has to have locked.
const LOCKED: u64 = 256 << 20;

/// Where the kernel tells of a machine: its own file systems, or a test's.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) sys: PathBuf,
    pub(super) proc: PathBuf,
}

impl Machine {
    pub(super) fn this() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into() }
    }

    pub(super) fn interface(&self, name: &str) -> PathBuf {
        self.sys.join("class/net").join(name)
    }
}

/// A file of one line; nothing where the kernel has none, or does not know.
pub(super) fn line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

pub(super) fn check_memlock(adapter: bool) -> Finding {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
    judge_memlock(limit, nix::unistd::geteuid().is_root(), adapter)
}

/// How a volume would be attached here.
pub(super) fn check_ways() -> Finding {
    let (_, reason) = Ways::this().best();
    Finding::ok("attach", format!("--via auto takes {reason}"))
}

/// Large buffers of an attachment lie in transparent huge pages, where the kernel gives some.
pub(super) fn check_huge_pages(machine: &Machine, adapter: bool) -> Finding {
    let there = HugePagesThere::look_at(&machine.sys.join("kernel/mm"));
    let found = format!("huge pages: {there}");
    match there.transparent.as_deref() {
        None | Some("never") if adapter => Finding::warn(
            "huge-pages",
            found,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: an adapter's translation tables need fewer entries of them",
        ),
        _ => Finding::ok("huge-pages", found),
    }
}

fn judge_memlock(limit: u64, root: bool, adapter: bool) -> Finding {
    let found = if limit == RLIM_INFINITY {
        "memory may be locked without a limit".to_owned()
    } else {
        format!("{} may be locked{}", Size(limit), if root { ", but root is not held to it" } else { "" })
    };
    if root || limit >= LOCKED {
        Finding::ok("memlock", found)
    } else if adapter {
        let least = Size(LOCKED);
        let remedy = format!(
            "allow {least} or more: a line `USER - memlock unlimited` in /etc/security/limits.conf and a new login, or LimitMEMLOCK=infinity in a systemd unit"
        );
        Finding::fail("memlock", found, remedy)
    } else {
        Finding::ok("memlock", format!("{found}, which software RDMA does not need"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn an_adapter_wants_huge_pages() {
        let place = tempfile::tempdir().unwrap();
        let machine = Machine { sys: place.path().into(), proc: place.path().into() };
        let said = place.path().join("kernel/mm/transparent_hugepage");
        fs::create_dir_all(&said).unwrap();
        for (mode, verdict) in
            [("always [madvise] never", Verdict::Ok), ("always madvise [never]", Verdict::Warn)]
        {
            fs::write(said.join("enabled"), mode).unwrap();
            let finding = check_huge_pages(&machine, true);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert_eq!(finding.remedy.is_some(), verdict == Verdict::Warn);
            assert_eq!(check_huge_pages(&machine, false).verdict, Verdict::Ok);
        }
    }

    #[test]
    fn only_an_adapter_used_by_an_ordinary_user_needs_locked_memory() {
        let verdict = |limit, root, adapter| judge_memlock(limit, root, adapter).verdict;
        assert_eq!(verdict(64 << 10, false, true), Verdict::Fail);
        assert_eq!(verdict(64 << 10, false, false), Verdict::Ok);
        assert_eq!(verdict(64 << 10, true, true), Verdict::Ok);
        assert_eq!(verdict(RLIM_INFINITY, false, true), Verdict::Ok);
    }
}
