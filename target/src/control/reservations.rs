//! Reservations and write protection which outlast a loss of power: a small file for each namespace that has some, in the state directory,
//! checksummed, and replaced as a whole before any host hears that it changed.
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ironside_common::nvme::reservation::Kind;
use uuid::Uuid;

use super::state_file;
use crate::reservation::{Held, HostId, Registrant, State};

const DIRECTORY: &str = "reservations";
const HEAD: &str = "ironside-target reservations 1";

/// Why the reservations of a namespace are not known.
#[derive(Debug, thiserror::Error)]
pub enum ReservationsError {
    #[error("{path} cannot be read or replaced: make it and its directory this user's", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} is damaged: {why}. It says which hosts may use namespace {uuid}, and whether it is write protected. \
         Restore it from a backup; or delete it, and then no host is registered there any more, it is not protected, \
         and every host may write: do so only once no host uses that namespace, and have those which share it \
         register and reserve anew",
        path = path.display()
    )]
    Damaged { path: PathBuf, uuid: Uuid, why: &'static str },
}

/// What was kept of this namespace's reservations, if anything was.
///
/// # Errors
/// If there is a file which cannot be read, or which is not as it was written.
pub fn load(state_directory: &Path, uuid: Uuid) -> Result<Option<State>, ReservationsError> {
    let path = path(state_directory, uuid);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|source| ReservationsError::Io { path: path.clone(), source })?,
    };
    let state = parse(&bytes, uuid).map_err(|why| ReservationsError::Damaged { path, uuid, why })?;
    Ok(Some(state))
}

/// Makes it durable; or, with nothing to keep, that there is nothing. A crash leaves the old file or the new one.
///
/// # Errors
/// If that cannot be: which of the two is there is not known then.
pub fn save(state_directory: &Path, uuid: Uuid, state: Option<&State>) -> Result<(), ReservationsError> {
    let path = path(state_directory, uuid);
    let result = match state {
        Some(state) => replace(&path, &render(uuid, state)),
        None => remove(&path),
    };
    result.map_err(|source| ReservationsError::Io { path, source })
}

fn path(state_directory: &Path, uuid: Uuid) -> PathBuf {
    state_directory.join(DIRECTORY).join(uuid.to_string())
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    if !directory.is_dir() {
        fs::create_dir_all(directory)?;
        state_file::sync_directory_of(directory)?;
    }
    state_file::replace(path, text)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| state_file::sync_directory_of(path)),
    }
}

/// A line for each thing. Writing to a string does not fail.
fn render(uuid: Uuid, state: &State) -> String {
    let mut lines = format!("namespace {uuid}\n");
    if state.protected {
        lines.push_str("write protected\n");
    }
    if state.persist {
        render_reservations(&mut lines, state);
    }
    state_file::seal(HEAD, &lines)
}

/// Only those which persist have a generation.
fn render_reservations(lines: &mut String, state: &State) {
    let _ = writeln!(lines, "generation {}", state.generation);
    let id = |host: &HostId| Uuid::from_bytes(*host);
    if let Some(held) = state.held {
        let _ = writeln!(lines, "reservation {} {}", held.kind.number(), id(&held.holder));
    }
    for Registrant { host_id, key } in &state.registrants {
        let _ = writeln!(lines, "registrant {} {key:016x}", id(host_id));
    }
}

fn parse(bytes: &[u8], uuid: Uuid) -> Result<State, &'static str> {
    let mut lines = state_file::unseal(bytes, HEAD)?;
    if lines.next() != Some(&format!("namespace {uuid}")) {
        return Err("it is another namespace's");
    }
    let mut state = State::default();
    for line in lines {
        read_line(line, &mut state).ok_or("a line makes no sense")?;
    }
    state.registrants.sort_by_key(|registrant| registrant.host_id);
    Ok(state)
}

fn read_line(line: &str, state: &mut State) -> Option<()> {
    let (name, value) = line.split_once(' ')?;
    let id = |text: &str| text.parse::<Uuid>().ok().map(Uuid::into_bytes);
    match name {
        "write" => state.protected = (value == "protected").then_some(true)?,
        "generation" => (state.generation, state.persist) = (value.parse().ok()?, true),
        "reservation" => {
            let (kind, holder) = value.split_once(' ')?;
            let kind = Kind::from_number(kind.parse().ok()?)?;
            state.held = Some(Held { kind, holder: id(holder)? });
        }
        "registrant" => {
            let (host, key) = value.split_once(' ')?;
            let key = u64::from_str_radix(key, 16).ok()?;
            state.registrants.push(Registrant { host_id: id(host)?, key });
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = Uuid::from_u128(7);

    fn state() -> State {
        let registrants = [(1, 10), (2, u64::MAX)];
        let registrants = registrants.map(|(host, key)| Registrant { host_id: [host; 16], key }).into();
        let held = Some(Held { kind: Kind::ExclusiveAccessRegistrantsOnly, holder: [2; 16] });
        State { generation: 9, registrants, held, persist: true, protected: true }
    }

    #[test]
    fn what_is_kept_is_found_again_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load(directory.path(), UUID).unwrap(), None);
        save(directory.path(), UUID, None).unwrap();
        save(directory.path(), UUID, Some(&state())).unwrap();
        assert_eq!(load(directory.path(), UUID).unwrap(), Some(state()));
        let empty = State { persist: true, generation: 10, ..State::default() };
        save(directory.path(), UUID, Some(&empty)).unwrap();
        assert_eq!(load(directory.path(), UUID).unwrap(), Some(empty));
        let protected = State { protected: true, ..State::default() };
        save(directory.path(), UUID, Some(&protected)).unwrap();
        assert_eq!(load(directory.path(), UUID).unwrap(), Some(protected));
        save(directory.path(), UUID, None).unwrap();
        assert_eq!(load(directory.path(), UUID).unwrap(), None);
    }

    #[test]
    fn a_torn_or_damaged_file_is_refused_with_a_way_out() {
        let directory = tempfile::tempdir().unwrap();
        save(directory.path(), UUID, Some(&state())).unwrap();
        let path = path(directory.path(), UUID);
        let good = fs::read(&path).unwrap();
        for index in 0..good.len() {
            let mut bad = good.clone();
            bad[index] ^= 1;
            fs::write(&path, &bad).unwrap();
            let error = load(directory.path(), UUID).unwrap_err();
            assert!(matches!(error, ReservationsError::Damaged { .. }), "byte {index}: {error}");
            assert!(error.to_string().contains("or delete it, and then no host is registered"));
            fs::write(&path, &good[..index]).unwrap();
            assert!(load(directory.path(), UUID).is_err(), "cut at {index}");
        }
        fs::rename(&path, path.with_file_name(Uuid::from_u128(8).to_string())).unwrap();
        fs::write(path.with_file_name(Uuid::from_u128(8).to_string()), &good).unwrap();
        let error = load(directory.path(), Uuid::from_u128(8)).unwrap_err();
        assert!(error.to_string().contains("another namespace's"), "{error}");
    }
}
