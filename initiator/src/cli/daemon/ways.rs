//! By which way a volume is offered here, and why: what each way takes, and what this machine has of it.
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cli::attachment::Via;
use crate::cli::error::CliError;
use crate::export::ublk;

/// The ways which make a block device, the best first.
const DEVICES: [Via; 3] = [Via::Ublk, Via::Fuse, Via::NbdDevice];

/// What a machine has.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Machine {
    root: bool,
    /// Why there is no ublk driver that does.
    without_ublk: Option<String>,
    fuse: bool,
    loop_driver: bool,
    nbd: bool,
    fusermount: bool,
    /// More than one core is to serve it.
    several_cores: bool,
}

/// What keeps a way from being taken.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Lack {
    #[error("takes root")]
    Root,
    #[error("takes {what}, which is missing")]
    Missing { what: &'static str, remedy: &'static str },
    #[error("cannot be used: {0}")]
    Driver(String),
    #[error("is served by one core alone")]
    Cores,
}

impl Lack {
    /// What helps.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Root => "run it as root",
            Self::Missing { remedy, .. } => remedy,
            Self::Cores => "--cores 1, or --via ublk or nbd",
            Self::Driver(_) => "load the driver (modprobe ublk_drv; Linux 6.5 or later)",
        }
    }
}

impl Machine {
    pub(in crate::cli) fn this() -> Self {
        let is_there = |path: &str| Path::new(path).exists();
        let places = std::env::var_os("PATH").unwrap_or_default();
        Self {
            root: nix::unistd::geteuid().is_root(),
            without_ublk: ublk::usable().err().map(|error| error.to_string()),
            fuse: is_there("/dev/fuse"),
            loop_driver: is_there("/dev/loop-control"),
            nbd: is_there("/sys/module/nbd"),
            several_cores: false,
            fusermount: std::env::split_paths(&places).any(|place| place.join("fusermount3").exists()),
        }
    }

    /// What keeps this way from being taken here.
    pub(in crate::cli) fn lacks(&self, via: Via) -> Option<Lack> {
        let missing = |what, remedy| Some(Lack::Missing { what, remedy });
        let fuse =
            || missing("/dev/fuse", "load the driver (modprobe fuse; in a container, hand in /dev/fuse)");
        match via {
            // The kernel's NBD client gives up a connection which does not answer for 30 seconds, if it has others, and
            // sends what that had again by them; it may be told of a longer time, but takes as long then to send again what
            // a process had that died.
            Via::Fuse | Via::FuseFile | Via::NbdDevice | Via::VhostUserBlk if self.several_cores => {
                Some(Lack::Cores)
            }
            Via::Auto | Via::Nbd | Via::VhostUserBlk => None,
            Via::FuseFile if !self.fuse => fuse(),
            Via::FuseFile if !self.root && !self.fusermount => {
                missing("root or fusermount3", "run it as root, or install fuse3")
            }
            Via::FuseFile => None,
            Via::Ublk | Via::Fuse | Via::NbdDevice if !self.root => Some(Lack::Root),
            Via::Ublk => self.without_ublk.clone().map(Lack::Driver),
            Via::Fuse if !self.fuse => fuse(),
            Via::Fuse if !self.loop_driver => missing(
                "/dev/loop-control",
                "load the driver (modprobe loop; in a container, hand in /dev/loop-control)",
            ),
            Via::NbdDevice if !self.nbd => missing("the nbd driver", "load the driver (modprobe nbd)"),
            Via::Fuse | Via::NbdDevice => None,
        }
    }

    /// The best way there is here, and why.
    pub(in crate::cli) fn best(&self) -> (Via, String) {
        let found = DEVICES.into_iter().find(|&via| self.lacks(via).is_none());
        let passed: Vec<_> = DEVICES
            .into_iter()
            .take_while(|&via| Some(via) != found)
            .filter_map(|via| Some(format!("{via} {}", self.lacks(via)?)))
            .collect();
        let best = found.unwrap_or(Via::Nbd);
        let behind = if passed.is_empty() { String::new() } else { format!("; {}", passed.join("; ")) };
        let what =
            if found.is_some() { "a block device, and the best way here" } else { "the best way here" };
        (best, format!("{}: {what}{behind}", best.in_words()))
    }
}

/// The way to be taken, for so many cores, and why in words for people.
///
/// # Errors
/// If the way asked for is not open here.
pub(super) fn decide(wanted: Via, cores: usize) -> Result<(Via, String), CliError> {
    let this = || Machine { several_cores: cores > 1, ..Machine::this() };
    let machine = this();
    let module = match wanted {
        Via::Ublk => Some("ublk_drv"),
        Via::NbdDevice => Some("nbd"),
        _ => None,
    };
    match module {
        // Whoever asks for a driver by name wants it loaded. Whether it is there then is looked at again.
        Some(module) if machine.root && machine.lacks(wanted).is_some() => {
            let mut modprobe = Command::new("modprobe");
            let _ = modprobe.args(["-q", module]).stdin(Stdio::null()).stdout(Stdio::null()).status();
            decide_on(wanted, &this())
        }
        _ => decide_on(wanted, &machine),
    }
}

fn decide_on(wanted: Via, machine: &Machine) -> Result<(Via, String), CliError> {
    if wanted == Via::Auto {
        return Ok(machine.best());
    }
    match machine.lacks(wanted) {
        None => Ok((wanted, format!("{}, as asked", wanted.in_words()))),
        Some(lack) => Err(CliError::Way { via: wanted, lack }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let (root, fuse, loop_driver, nbd, fusermount) = (true, true, true, true, true);
        Machine { root, without_ublk: None, fuse, loop_driver, nbd, fusermount, several_cores: false }
    }

    #[test]
    fn the_best_way_is_taken_and_those_before_it_are_explained() {
        assert_eq!(machine().best().0, Via::Ublk);
        let without = Machine { without_ublk: Some("there is none".into()), ..machine() };
        let (via, reason) = without.best();
        assert_eq!(via, Via::Fuse);
        assert!(reason.contains("ublk cannot be used: there is none"), "{reason}");
        let (via, reason) = Machine { fuse: false, ..without.clone() }.best();
        assert_eq!(via, Via::NbdDevice);
        assert!(reason.contains("fuse takes /dev/fuse, which is missing"), "{reason}");
        assert_eq!(Machine { fuse: false, nbd: false, ..without }.best().0, Via::Nbd);
        let several =
            Machine { without_ublk: Some("there is none".into()), several_cores: true, ..machine() };
        let (via, reason) = several.best();
        assert_eq!(via, Via::Nbd);
        assert!(reason.contains("fuse is served by one core alone; nbd-device is served"), "{reason}");
        let (via, reason) = Machine { root: false, ..machine() }.best();
        assert_eq!(via, Via::Nbd);
        assert!(reason.contains("ublk takes root; fuse takes root; nbd-device takes root"), "{reason}");
    }

    #[test]
    fn a_way_that_is_asked_for_is_taken_or_refused_with_what_helps() {
        for via in [Via::Ublk, Via::Fuse, Via::FuseFile, Via::NbdDevice, Via::Nbd, Via::VhostUserBlk] {
            let (taken, reason) = decide_on(via, &machine()).unwrap();
            assert!(taken == via && reason.ends_with("as asked"), "{reason}");
        }
        let refused = |via, machine: Machine| {
            let error = decide_on(via, &machine).unwrap_err();
            (error.to_string(), error.remedy().unwrap())
        };
        for via in DEVICES {
            let (error, remedy) = refused(via, Machine { root: false, ..machine() });
            assert!(error.contains("takes root") && remedy.contains("as root"), "{error}: {remedy}");
        }
        let (error, remedy) = refused(Via::Fuse, Machine { fuse: false, ..machine() });
        assert!(error.contains("/dev/fuse") && remedy.contains("modprobe fuse"), "{error}: {remedy}");
        for via in [Via::Fuse, Via::FuseFile, Via::NbdDevice, Via::VhostUserBlk] {
            let (error, remedy) = refused(via, Machine { several_cores: true, ..machine() });
            assert!(error.contains("one core alone") && remedy.contains("--cores 1"), "{error}: {remedy}");
        }
        let alone = Machine { root: false, fusermount: false, ..machine() };
        assert!(refused(Via::FuseFile, alone.clone()).1.contains("fuse3"));
        assert!(decide_on(Via::FuseFile, &Machine { fusermount: true, ..alone }).is_ok());
        let (error, remedy) = refused(Via::NbdDevice, Machine { nbd: false, ..machine() });
        assert!(error.contains("nbd driver") && remedy.contains("--via nbd"), "{error}: {remedy}");
    }
}
