//! Huge pages which somebody has set aside (hugetlbfs): which are to be taken, and what a machine has.
//!
//! They are another thing than transparent huge pages, which the kernel gives by itself where it can: they are there or
//! not, are never split, and are nobody else's.
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Where the kernel tells of them.
const MEMORY: &str = "/sys/kernel/mm";

/// Which huge pages large memory is to lie in. Where there are not enough of them, it lies in common pages, for which
/// transparent ones are asked for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HugePages {
    /// None of those which are set aside.
    #[default]
    Off,
    /// Those of 2 MiB, if they are there.
    Auto,
    TwoMebibytes,
    /// Those of 1 GiB for memory which is as large, those of 2 MiB for the rest.
    OneGibibyte,
}

/// A word that names no huge pages.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is none of off, auto, 2MiB and 1GiB")]
pub struct HugePagesError(String);

impl FromStr for HugePages {
    type Err = HugePagesError;

    fn from_str(text: &str) -> Result<Self, HugePagesError> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "2MiB" => Ok(Self::TwoMebibytes),
            "1GiB" => Ok(Self::OneGibibyte),
            _ => Err(HugePagesError(text.into())),
        }
    }
}

impl HugePages {
    /// Sizes in bytes which memory of this length may lie in, the best first.
    pub(super) fn sizes(self, length: usize) -> impl Iterator<Item = usize> {
        let sizes: &[usize] = match self {
            Self::Off => &[],
            Self::Auto | Self::TwoMebibytes => &[2 << 20],
            Self::OneGibibyte => &[1 << 30, 2 << 20],
        };
        sizes.iter().copied().filter(move |&size| length >= size)
    }
}

/// The huge pages of a machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HugePagesThere {
    /// Those which are set aside, the smallest first.
    pub set_aside: Vec<SetAside>,
    /// When the kernel gives transparent ones: `always`, `madvise` (to who asks for them, as we do) or `never`; nothing
    /// if it has none.
    pub transparent: Option<String>,
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SetAside {
    pub bytes: u64,
    pub pages: u64,
    pub free: u64,
}

impl HugePagesThere {
    /// Those of this machine.
    #[must_use]
    pub fn look() -> Self {
        Self::look_at(Path::new(MEMORY))
    }

    /// As [`Self::look`], where the kernel's directory of memory is another one.
    #[must_use]
    pub fn look_at(memory: &Path) -> Self {
        let sizes = fs::read_dir(memory.join("hugepages")).into_iter().flatten().flatten();
        let mut set_aside: Vec<_> = sizes.filter_map(|size| SetAside::look_at(&size.path())).collect();
        set_aside.sort_unstable();
        let modes = fs::read_to_string(memory.join("transparent_hugepage/enabled")).unwrap_or_default();
        let chosen = modes.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Self { set_aside, transparent: chosen.map(|(mode, _)| mode.to_owned()) }
    }
}

impl SetAside {
    fn look_at(directory: &Path) -> Option<Self> {
        let name = directory.file_name()?.to_str()?;
        let kibibytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |name| fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok();
        let (pages, free): (u64, u64) = (number("nr_hugepages")?, number("free_hugepages")?);
        let reserved = number("resv_hugepages").unwrap_or(0);
        Some(Self { bytes: kibibytes << 10, pages, free: free.saturating_sub(reserved) })
    }
}

impl fmt::Display for HugePagesThere {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut any = false;
        for SetAside { bytes, pages, free } in self.set_aside.iter().filter(|one| one.pages > 0) {
            any = true;
            write!(out, "{pages} of {} set aside, {free} of them free; ", in_words(*bytes))?;
        }
        if !any {
            out.write_str("none set aside; ")?;
        }
        match self.transparent.as_deref() {
            None | Some("never") => out.write_str("no transparent ones"),
            Some("always") => out.write_str("transparent ones always"),
            Some(mode) => write!(out, "transparent ones to who asks ({mode})"),
        }
    }
}

/// The size of a page.
pub(super) fn in_words(bytes: u64) -> String {
    let (unit, shift) = match bytes.trailing_zeros() {
        30.. => ("GiB", 30),
        20..30 => ("MiB", 20),
        _ => ("KiB", 10),
    };
    format!("{} {unit}", bytes >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_has_is_told_in_words() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let said = || HugePagesThere::look_at(place.path()).to_string();
        assert_eq!(said(), "none set aside; no transparent ones");
        for (size, pages, free) in [("1048576", "0", "0"), ("2048", "512", "500")] {
            write(&format!("hugepages/hugepages-{size}kB/nr_hugepages"), pages);
            write(&format!("hugepages/hugepages-{size}kB/free_hugepages"), free);
        }
        write("hugepages/hugepages-2048kB/resv_hugepages", "10\n");
        write("transparent_hugepage/enabled", "always [madvise] never\n");
        assert_eq!(
            said(),
            "512 of 2 MiB set aside, 490 of them free; transparent ones to who asks (madvise)"
        );
        let there = HugePagesThere::look_at(place.path());
        assert_eq!(there.set_aside.iter().map(|one| one.bytes).collect::<Vec<_>>(), [2 << 20, 1 << 30]);
    }

    #[test]
    fn memory_lies_in_no_page_which_is_larger_than_itself() {
        let sizes =
            |pages: &str, length| pages.parse::<HugePages>().unwrap().sizes(length).collect::<Vec<_>>();
        assert_eq!(sizes("1GiB", 3 << 30), [1 << 30, 2 << 20]);
        assert_eq!(sizes("1GiB", 112 << 20), [2 << 20]);
        assert_eq!(sizes("2MiB", 1 << 20), []);
        assert_eq!(sizes("auto", 2 << 20), [2 << 20]);
        assert_eq!(sizes("off", 3 << 30), []);
        assert_eq!(
            "4MiB".parse::<HugePages>().unwrap_err().to_string(),
            "`4MiB` is none of off, auto, 2MiB and 1GiB"
        );
    }
}
