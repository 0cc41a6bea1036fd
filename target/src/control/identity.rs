//! Names which must be the same after a restart, though nobody chose them: a host takes a namespace with
//! another UUID, or a subsystem with another serial number, for another one. They are made once and kept in
//! one small file of the state directory, checksummed, and replaced as a whole.
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use ironside_common::identity::{UUID_NQN_PREFIX, state_directory};
use ironside_common::nvme::Nqn;
use uuid::Uuid;

use super::config::{Backing, Bdev, BdevName, Config, Namespace, Serial, Subsystem};
use super::state_file;

const FILE: &str = "target.identities";
const HEAD: &str = "ironside-target identities 1";

/// Who a subsystem is, and each of its namespaces, in the order of the configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    pub nqn: Nqn,
    pub serial: Serial,
    /// The NGUID of each is the same 16 bytes.
    pub uuids: Vec<Uuid>,
}

/// Who everything is that a configuration names.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identities {
    pub subsystems: Vec<Identity>,
    /// Of each bdev.
    pub bdevs: Vec<Uuid>,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "no place for lasting state: give --state-dir (state-dir in a file), or set XDG_STATE_HOME or HOME"
    )]
    NoDirectory,
    #[error(
        "{path} cannot be kept: make {directory} a directory this user may write, or give another \
         --state-dir (state-dir in a file)",
        path = path.display(), directory = path.parent().unwrap_or(path).display()
    )]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} is damaged: {why}. Restore it from a backup; or delete it, and new identities are made, \
         which hosts take for new namespaces; or give nqn, serial and uuid in the configuration",
        path = path.display()
    )]
    Damaged { path: PathBuf, why: &'static str },
}

/// What a process which serves already has given out, and nothing but itself remembers.
#[derive(Clone, Debug, Default)]
pub struct Lent {
    /// The name of the one subsystem which the configuration gives none.
    pub nqn: Option<Nqn>,
    /// Memory: of which subsystem, under which number, of how many bytes.
    pub memory: BTreeMap<(Nqn, u32, u64), Uuid>,
    /// Bdevs in memory: under which name, of how many bytes.
    pub bdevs: BTreeMap<(BdevName, u64), Uuid>,
    /// What the state file kept for files and the rest, under their names there: should it be lost meanwhile, what
    /// is served stays what it is.
    pub kept: BTreeMap<String, Uuid>,
}

/// The identities of what `config` serves: as it says, as lent before, as kept, or made and kept now.
///
/// # Errors
/// If the state directory cannot be used, or its file is damaged.
pub fn settle(config: &Config, lent: &Lent) -> Result<Identities, IdentityError> {
    let known = config.bdevs.iter().all(|bdev| bdev.uuid.is_some());
    let mut kept = match config.state_directory.clone().or_else(state_directory) {
        _ if known && config.subsystems.iter().all(is_complete) => Kept::default(),
        Some(directory) => Kept::open(&directory)?,
        None => return Err(IdentityError::NoDirectory),
    };
    let bdevs: Vec<Uuid> = config.bdevs.iter().map(|one| bdev_uuid(one, lent, &mut kept)).collect();
    let known: BTreeMap<_, _> =
        config.bdevs.iter().map(|bdev| &bdev.name).zip(bdevs.iter().copied()).collect();
    let one = |one| identity(one, config, (lent, &known), &mut kept);
    let subsystems = config.subsystems.iter().map(one).collect();
    kept.save()?;
    Ok(Identities { subsystems, bdevs })
}

fn is_complete(subsystem: &Subsystem) -> bool {
    let namespaces = subsystem.namespaces.iter().all(|namespace| namespace.uuid.is_some());
    subsystem.nqn.is_some() && subsystem.serial.is_some() && namespaces
}

/// What was in memory is gone with the process, as with a namespace.
fn bdev_uuid(bdev: &Bdev, lent: &Lent, kept: &mut Kept) -> Uuid {
    match (bdev.uuid, &bdev.backing) {
        (Some(uuid), _) => uuid,
        (None, Backing::Ram { size }) => {
            lent.bdevs.get(&(bdev.name.clone(), *size)).copied().unwrap_or_else(Uuid::new_v4)
        }
        (None, backing) => {
            let key = bdev_key(bdev, backing);
            let before = lent.kept.get(&key).copied();
            kept.uuid_or(key, before)
        }
    }
}

pub(super) fn bdev_key(bdev: &Bdev, backing: &Backing) -> String {
    match backing {
        Backing::File { path, .. } => file_key(path),
        Backing::Ram { .. } | Backing::Null { .. } => format!("bdev {}", bdev.name),
    }
}

fn identity(
    subsystem: &Subsystem,
    config: &Config,
    (lent, bdevs): (&Lent, &BTreeMap<&BdevName, Uuid>),
    kept: &mut Kept,
) -> Identity {
    let nqn = subsystem.nqn.unwrap_or_else(|| {
        let listen: Vec<String> = config.listen.iter().map(|one| one.address.to_string()).collect();
        // One that moves to other listeners while it is served stays who it is, after a restart too.
        let before = lent.nqn.and_then(|nqn| nqn.to_string().strip_prefix(UUID_NQN_PREFIX)?.parse().ok());
        let uuid = kept.uuid_or(format!("subsystem at {}", listen.join(" ")), before);
        let nqn = format!("{UUID_NQN_PREFIX}{uuid}");
        nqn.parse().expect("the UUID form is a valid NQN")
    });
    let serial = subsystem.serial.unwrap_or_else(|| {
        let uuid = kept.uuid(format!("serial of {nqn}")).simple().to_string();
        uuid[..20].parse().expect("20 hexadecimal digits are a serial number")
    });
    let given = |one: &Namespace| one.uuid.or_else(|| bdevs.get(one.bdev.as_ref()?).copied());
    let uuid = |one: &Namespace| match (given(one), &one.backing) {
        (Some(uuid), _) => uuid,
        // What was in memory is gone with the process: a host which comes back has to see another namespace,
        // not the one it knew full of zeroes.
        (None, Backing::Ram { size }) => {
            lent.memory.get(&(nqn, one.nsid, *size)).copied().unwrap_or_else(Uuid::new_v4)
        }
        (None, _) => {
            let key = namespace_key(&nqn, one);
            let before = lent.kept.get(&key).copied();
            kept.uuid_or(key, before)
        }
    };
    Identity { nqn, serial, uuids: subsystem.namespaces.iter().map(uuid).collect() }
}

/// A file is itself wherever it is served; memory is only known by who serves it. The last part of a path is
/// not resolved: names in /dev/disk/by-id stay, what they point to does not.
pub(super) fn namespace_key(nqn: &Nqn, namespace: &Namespace) -> String {
    let Backing::File { path, .. } = &namespace.backing else {
        return format!("namespace {} of {nqn}", namespace.nsid);
    };
    file_key(path)
}

fn file_key(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => format!("file {:?}", folder.join(name)),
        _ => format!("file {path:?}"),
    }
}

/// The file, and the lock that keeps a second target out while this one reads and replaces it.
#[derive(Default)]
struct Kept {
    place: Option<(PathBuf, File)>,
    uuids: BTreeMap<String, Uuid>,
    is_changed: bool,
}

impl Kept {
    fn open(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join(FILE);
        let read = || {
            fs::create_dir_all(directory)?;
            let lock = File::create(directory.join("target.lock"))?;
            lock.lock()?;
            match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((lock, None)),
                bytes => Ok((lock, Some(bytes?))),
            }
        };
        let (lock, bytes) = read().map_err(|source| IdentityError::Io { path: path.clone(), source })?;
        let parse = |bytes| parse(bytes).map_err(|why| IdentityError::Damaged { path: path.clone(), why });
        let uuids = bytes.as_deref().map(parse).transpose()?.unwrap_or_default();
        Ok(Self { place: Some((path, lock)), uuids, is_changed: false })
    }

    fn uuid(&mut self, key: String) -> Uuid {
        self.uuid_or(key, None)
    }

    /// The UUID of this name: `before` if there is one, else as kept, else a new one.
    fn uuid_or(&mut self, key: String, before: Option<Uuid>) -> Uuid {
        let uuid = before.or_else(|| self.uuids.get(&key).copied()).unwrap_or_else(Uuid::new_v4);
        self.is_changed |= self.uuids.insert(key, uuid) != Some(uuid);
        uuid
    }

    fn save(self) -> Result<(), IdentityError> {
        let Some((path, _lock)) = self.place.filter(|_| self.is_changed) else { return Ok(()) };
        let replaced = state_file::replace(&path, &render(&self.uuids));
        replaced.map_err(|source| IdentityError::Io { path, source })
    }
}

/// A line of a UUID and its key each.
fn render(uuids: &BTreeMap<String, Uuid>) -> String {
    let lines: String = uuids.iter().map(|(key, uuid)| format!("{uuid} {key}\n")).collect();
    state_file::seal(HEAD, &lines)
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<String, Uuid>, &'static str> {
    let entry = |line: &str| {
        let (uuid, key) = line.split_once(' ')?;
        Some((key.to_owned(), uuid.parse().ok()?))
    };
    state_file::unseal(bytes, HEAD)?.map(entry).collect::<Option<_>>().ok_or("a line has no UUID")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(config: &Config, lent: &Lent) -> Result<Vec<Identity>, IdentityError> {
        settle(config, lent).map(|identities| identities.subsystems)
    }

    fn config(directory: &Path, keys: &str) -> Config {
        let text = format!(
            "state-dir = {directory:?}\n[[subsystem]]\n{keys}\n[[subsystem.namespace]]\npath = \"/dev/null\"\n\
             [[subsystem.namespace]]\nram = 4096\n"
        );
        Config::parse(Path::new("target.toml"), &text).unwrap()
    }

    #[test]
    fn identities_survive_a_restart_and_follow_the_medium() {
        let directory = tempfile::tempdir().unwrap();
        let first = settled(&config(directory.path(), ""), &Lent::default()).unwrap();
        let again = settled(&config(directory.path(), ""), &Lent::default()).unwrap();
        assert_eq!(
            (again[0].nqn, again[0].serial, again[0].uuids[0]),
            (first[0].nqn, first[0].serial, first[0].uuids[0])
        );
        assert_ne!(again[0].uuids[1], first[0].uuids[1], "what was in memory is gone");
        assert_ne!(first[0].uuids[0], first[0].uuids[1]);
        assert_eq!(first[0].serial.as_str().len(), 20);

        let renamed =
            settled(&config(directory.path(), "nqn = \"nqn.2014-08.org.example:a\""), &Lent::default())
                .unwrap();
        assert_eq!(renamed[0].uuids[0], first[0].uuids[0], "the file is the same file");
    }

    #[test]
    fn what_is_served_stays_itself_without_its_state() {
        let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = config(directory.path(), "nqn = \"nqn.2014-08.org.example:a\"");
        let served = &settled(&config, &Lent::default()).unwrap()[0];
        let key = namespace_key(&served.nqn, &config.subsystems[0].namespaces[0]);
        let lent = Lent { kept: BTreeMap::from([(key, served.uuids[0])]), ..Lent::default() };
        fs::rename(directory.path().join(FILE), other.path().join(FILE)).unwrap();
        assert_eq!(settled(&config, &lent).unwrap()[0].uuids[0], served.uuids[0]);
        let restarted = &settled(&config, &Lent::default()).unwrap()[0];
        assert_eq!(restarted.uuids[0], served.uuids[0], "it is kept anew");
    }

    #[test]
    fn what_the_configuration_says_needs_no_state() {
        let keys = "nqn = \"nqn.2014-08.org.example:a\"\nserial = \"S\"\nnamespace = [{ ram = 4096, uuid = \
                    \"6f9619ff-8b86-d011-b42d-00cf4fc964ff\" }]";
        let text = format!("state-dir = \"/dev/null/nowhere\"\n[[subsystem]]\n{keys}\n");
        let config = Config::parse(Path::new("target.toml"), &text).unwrap();
        let identity = &settled(&config, &Lent::default()).unwrap()[0];
        assert_eq!((identity.serial.as_str(), identity.uuids.len()), ("S", 1));
    }

    #[test]
    fn a_damaged_file_is_refused_with_a_way_out() {
        let directory = tempfile::tempdir().unwrap();
        settled(&config(directory.path(), ""), &Lent::default()).unwrap();
        let path = directory.path().join(FILE);
        let good = fs::read(&path).unwrap();
        for index in 0..good.len() {
            let mut bad = good.clone();
            bad[index] ^= 1;
            fs::write(&path, &bad).unwrap();
            let error = settled(&config(directory.path(), ""), &Lent::default()).unwrap_err();
            assert!(matches!(error, IdentityError::Damaged { .. }), "byte {index}: {error}");
            assert!(error.to_string().contains("delete it"));
            fs::write(&path, &good[..index]).unwrap();
            assert!(settled(&config(directory.path(), ""), &Lent::default()).is_err(), "cut at {index}");
        }
        fs::write(&path, &good).unwrap();
        settled(&config(directory.path(), ""), &Lent::default()).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_is_told_by_name() {
        let error = settled(&config(Path::new("/dev/null/nowhere"), ""), &Lent::default()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("/dev/null/nowhere/target.identities cannot be kept: make /dev/null"),
            "{text}"
        );
    }
}
