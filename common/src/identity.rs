//! Who this machine is as an NVMe host, and where lasting state lies: shared, because a target which is told
//! no host by name admits exactly the host that the initiator of the same machine says it is.
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::nvme::{Nqn, NqnError};

/// What an NQN begins with that is a UUID, and so needs no domain name.
pub const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The NQN and the identifier which a host names itself by in Fabrics Connect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostIdentity {
    pub nqn: Nqn,
    pub id: Uuid,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: {source}", path = path.display())]
    NotAnNqn { path: PathBuf, source: NqnError },
    #[error("{path}: not a UUID: {text:?}; delete the file to have a new one made", path = path.display())]
    NotAUuid { path: PathBuf, text: String },
    #[error("no place for lasting state: set XDG_STATE_HOME or HOME")]
    NoStateDirectory,
}

/// Where state that outlives a process belongs: `$XDG_STATE_HOME/ironside` if that is set,
/// `/var/lib/ironside` for root, `~/.local/state/ironside` for everyone else.
pub fn state_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(state) = variable("XDG_STATE_HOME") {
        return Some(state.join("ironside"));
    }
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/ironside"));
    }
    variable("HOME").map(|home| home.join(".local/state/ironside"))
}

/// This machine's identity as a host: `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, which nvme-cli shares;
/// where they are missing, one made once and kept in [`state_directory`].
///
/// # Errors
/// If a file cannot be read or made, or does not hold what it should.
pub fn host_identity() -> Result<HostIdentity, IdentityError> {
    host_identity_in(Path::new("/etc/nvme"), state_directory().as_deref())
}

fn host_identity_in(system: &Path, state: Option<&Path>) -> Result<HostIdentity, IdentityError> {
    let nqn = read_nqn(&system.join("hostnqn"))?;
    let id = read_uuid(&system.join("hostid"))?;
    // A host NQN of the UUID form names the identifier too.
    let id = id.or_else(|| nqn.as_ref()?.as_str().strip_prefix(UUID_NQN_PREFIX)?.parse().ok());
    let id = match id {
        Some(id) => id,
        None => own_id(state.ok_or(IdentityError::NoStateDirectory)?)?,
    };
    let nqn = nqn
        .unwrap_or_else(|| format!("{UUID_NQN_PREFIX}{id}").parse().expect("the UUID form is a valid NQN"));
    Ok(HostIdentity { nqn, id })
}

/// The identifier kept in the state directory, made on first use. Two processes may meet here for the first
/// time: a link never replaces, so both end with the same one.
fn own_id(state: &Path) -> Result<Uuid, IdentityError> {
    let path = state.join("hostid");
    if let Some(id) = read_uuid(&path)? {
        return Ok(id);
    }
    let draft = state.join(format!("hostid.{}", std::process::id()));
    let made = fs::create_dir_all(state)
        .and_then(|()| File::create(&draft))
        .and_then(|mut file| writeln!(file, "{}", Uuid::new_v4()).and_then(|()| file.sync_all()))
        .and_then(|()| match fs::hard_link(&draft, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::remove_file(&draft),
        });
    made.map_err(|source| IdentityError::Io { path: path.clone(), source })?;
    read_uuid(&path)?
        .ok_or_else(|| IdentityError::Io { source: io::Error::from(io::ErrorKind::NotFound), path })
}

fn read_nqn(path: &Path) -> Result<Option<Nqn>, IdentityError> {
    let Some(text) = read(path)? else { return Ok(None) };
    text.parse().map(Some).map_err(|source| IdentityError::NotAnNqn { path: path.into(), source })
}

fn read_uuid(path: &Path) -> Result<Option<Uuid>, IdentityError> {
    let Some(text) = read(path)? else { return Ok(None) };
    match text.parse() {
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(IdentityError::NotAUuid { path: path.into(), text }),
    }
}

fn read(path: &Path) -> Result<Option<String>, IdentityError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IdentityError::Io { path: path.into(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(self.0.path().join("etc")).unwrap();
            fs::write(self.0.path().join("etc").join(name), text).unwrap();
        }

        fn identity(&self) -> Result<HostIdentity, IdentityError> {
            host_identity_in(&self.0.path().join("etc"), Some(&self.0.path().join("state/ironside")))
        }
    }

    #[test]
    fn the_identity_nvme_cli_uses_is_ours_too() {
        let place = Place::new();
        place.write("hostnqn", "nqn.2026-11.org.example:me\n");
        place.write("hostid", "6f9619ff-8b86-d011-b42d-00cf4fc964ff\n");
        let identity = place.identity().unwrap();
        assert_eq!(identity.nqn.as_str(), "nqn.2026-11.org.example:me");
        assert_eq!(identity.id.to_string(), "6f9619ff-8b86-d011-b42d-00cf4fc964ff");
    }

    #[test]
    fn a_uuid_nqn_alone_names_the_identifier() {
        let place = Place::new();
        place.write("hostnqn", "nqn.2014-08.org.nvmexpress:uuid:6f9619ff-8b86-d011-b42d-00cf4fc964ff\n");
        assert_eq!(place.identity().unwrap().id.to_string(), "6f9619ff-8b86-d011-b42d-00cf4fc964ff");
    }

    #[test]
    fn one_is_made_once_and_kept() {
        let place = Place::new();
        let first = place.identity().unwrap();
        assert_eq!(first.nqn.as_str(), format!("{UUID_NQN_PREFIX}{}", first.id));
        assert_eq!(place.identity().unwrap(), first);
        let left: Vec<_> = fs::read_dir(place.0.path().join("state/ironside")).unwrap().collect();
        assert_eq!(left.len(), 1, "no draft is left behind");
    }

    #[test]
    fn what_is_no_identity_is_refused_by_name() {
        let place = Place::new();
        place.write("hostnqn", "hello\n");
        assert!(place.identity().unwrap_err().to_string().contains("hostnqn"));
        place.write("hostnqn", "nqn.2026-11.org.example:me\n");
        place.write("hostid", "42\n");
        assert!(matches!(place.identity(), Err(IdentityError::NotAUuid { .. })));
    }
}
