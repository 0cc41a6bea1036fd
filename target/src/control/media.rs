//! From what a configuration names to media that are open, with a missing file made where its size is given.
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use ironside_common::memory::HugePages;

use super::config::{Backing, BlockSize, Namespace};
use crate::backend::{FileOptions, Identity, OpenError, OpenMedium};

/// Why a namespace cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{path} cannot be made{}", creation_hint(source), path = path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("{path} has {found} bytes, not the {wanted} asked for; leave the size out, or give another path",
        path = path.display())]
    OtherSize { path: PathBuf, found: u64, wanted: u64 },
    #[error("{path} is missing; give a size, as in `{path},size=1GiB`, to have it made", path = path.display())]
    Missing { path: PathBuf },
}

fn creation_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => ": make its directory first",
        io::ErrorKind::PermissionDenied => ": choose a directory this user may write",
        io::ErrorKind::FileTooLarge => ": its file system has no files so large; choose a smaller size",
        _ => "",
    }
}

/// A medium which is open already, and the size the configuration gave its file.
#[derive(Clone, Debug)]
pub struct Opened {
    pub medium: OpenMedium,
    pub wanted: Option<u64>,
}

/// Opens what a namespace is made of, unless it is one of those `opened` already: a file by whatever name, or
/// `memory`, which is what the namespace was made of before. New memory lies in `pages`, if they are there. One that is `shared` another target may have open too.
///
/// # Errors
/// If it cannot be opened.
pub fn open(
    namespace: &Namespace,
    shared: bool,
    opened: &[Opened],
    memory: Option<&OpenMedium>,
    pages: HugePages,
) -> Result<OpenMedium, MediaError> {
    // Memory has no sectors of its own; 4 KiB is what a host's pages are.
    let block_size = namespace.block_size.map(BlockSize::bytes);
    let in_memory = block_size.unwrap_or(4096);
    let again = |medium: &OpenMedium| medium.with_options(Some(in_memory), namespace.read_only);
    let medium = match &namespace.backing {
        Backing::File { path, size } => return open_file(path, *size, (namespace, shared), opened),
        Backing::Ram { size } => match memory.and_then(again) {
            Some(medium) => return Ok(medium),
            None => OpenMedium::ram_in_pages(*size, in_memory, pages)?,
        },
        Backing::Null { size } => match memory.and_then(again) {
            Some(medium) => return Ok(medium),
            None => OpenMedium::null(*size, in_memory)?,
        },
    };
    Ok(if namespace.read_only { medium.protected() } else { medium })
}

fn open_file(
    path: &Path,
    size: Option<u64>,
    (namespace, shared): (&Namespace, bool),
    opened: &[Opened],
) -> Result<OpenMedium, MediaError> {
    let is_made = size.map(|size| make(path, size)).transpose()?.unwrap_or(false);
    if !is_made && !path.exists() {
        return Err(MediaError::Missing { path: path.into() });
    }
    let identity = Identity::of(path).map_err(|source| OpenError::Open { path: path.into(), source })?;
    let before = opened.iter().find(|one| one.medium.identity() == identity);
    let (block_size, read_only) = (namespace.block_size.map(BlockSize::bytes), namespace.read_only);
    let options = FileOptions { block_size, read_only, shared, ..FileOptions::default() };
    let medium = match before.map(|one| &one.medium) {
        None => OpenMedium::file(path, options)?,
        Some(before) => {
            match before.with_options(block_size, read_only).filter(|medium| medium.shared() == shared) {
                Some(medium) => medium,
                None => {
                    // Our own lock would refuse us another one.
                    before.unlock();
                    OpenMedium::file(path, options).inspect_err(|_| before.lock_again())?
                }
            }
        }
    };
    // One that has grown while it was served is right as it is.
    let known = before.is_some_and(|before| before.wanted == size);
    match size.filter(|wanted| !known && *wanted != medium.size()) {
        Some(wanted) => Err(MediaError::OtherSize { path: path.into(), found: medium.size(), wanted }),
        None => Ok(medium),
    }
}

/// Makes a sparse file of `size` bytes, and says so; nothing if there is one. What cannot be made as large is
/// removed again, or the next start would find a file of another size.
fn make(path: &Path, size: u64) -> Result<bool, MediaError> {
    let failed = |source| MediaError::Create { path: path.into(), source };
    let file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        file => file.map_err(failed)?,
    };
    file.set_len(size).and_then(|()| file.sync_all()).map_err(|source| {
        // The first error says more than this one would.
        let _ = fs::remove_file(path);
        failed(source)
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::config::Config;

    fn open(keys: &str) -> Result<OpenMedium, MediaError> {
        let text = format!("[[subsystem]]\nnamespace = [{{ {keys} }}]\n");
        let config = Config::parse(Path::new("target.toml"), &text).unwrap();
        super::open(&config.subsystems[0].namespaces[0], false, &[], None, HugePages::Off)
    }

    #[test]
    fn a_missing_file_is_made_and_another_size_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        let named = |size: &str| format!("path = {path:?}{size}");
        assert!(matches!(open(&named("")), Err(MediaError::Missing { .. })));
        let made = open(&named(", size = \"1MiB\"")).unwrap();
        assert_eq!(made.size(), 1 << 20);
        drop(made);
        assert_eq!(open(&named("")).unwrap().size(), 1 << 20);
        let other = open(&named(", size = \"2MiB\"")).unwrap_err();
        assert!(
            matches!(other, MediaError::OtherSize { found: 0x10_0000, wanted: 0x20_0000, .. }),
            "{other}"
        );
    }

    #[test]
    fn a_file_which_cannot_be_made_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        // No file has so many bytes: offsets are signed.
        let error = open(&format!("path = {path:?}, size = \"16777215TiB\"")).unwrap_err();
        assert!(matches!(error, MediaError::Create { .. }), "{error}");
        assert!(!path.exists());
        let path = directory.path().join("missing/disk.img");
        let error = open(&format!("path = {path:?}, size = \"1MiB\"")).unwrap_err();
        assert!(error.to_string().ends_with("make its directory first"), "{error}");
    }

    #[test]
    fn memory_and_nothing_have_the_size_they_were_given() {
        assert_eq!(open("ram = \"1MiB\"").unwrap().size(), 1 << 20);
        let ram = open("ram = \"1MiB\", read-only = true").unwrap();
        assert!(ram.read_only());
        let null = open("null = \"1TiB\", lba = 512").unwrap();
        assert_eq!((null.size(), null.block_size()), (1 << 40, 512));
    }
}
