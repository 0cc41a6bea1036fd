//! From what a configuration names to media that are open, with a missing file made where its size is given.
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use super::config::{Backing, BlockSize, Config, Namespace};
use crate::backend::{FileOptions, OpenError, OpenMedium};

/// Why a namespace cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{path} cannot be made", path = path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("{path} has {found} bytes, not the {wanted} asked for; leave the size out, or give another path",
        path = path.display())]
    OtherSize { path: PathBuf, found: u64, wanted: u64 },
    #[error("{path} is missing; give a size, as in `{path},size=1GiB`, to have it made", path = path.display())]
    Missing { path: PathBuf },
}

/// Opens what every subsystem serves, in the order of the configuration.
///
/// # Errors
/// The first medium which cannot be opened.
pub fn open(config: &Config) -> Result<Vec<Vec<OpenMedium>>, MediaError> {
    config.subsystems.iter().map(|subsystem| subsystem.namespaces.iter().map(open_one).collect()).collect()
}

fn open_one(namespace: &Namespace) -> Result<OpenMedium, MediaError> {
    let block_size = namespace.block_size.map(BlockSize::bytes);
    let medium = match &namespace.backing {
        Backing::File { path, size } => {
            let is_made = size.map(|size| make(path, size)).transpose()?.unwrap_or(false);
            if !is_made && !path.exists() {
                return Err(MediaError::Missing { path: path.clone() });
            }
            let options =
                FileOptions { block_size, read_only: namespace.read_only, ..FileOptions::default() };
            let medium = OpenMedium::file(path, options)?;
            if let Some(wanted) = size.filter(|wanted| *wanted != medium.size()) {
                return Err(MediaError::OtherSize { path: path.clone(), found: medium.size(), wanted });
            }
            medium
        }
        // Memory has no sectors of its own; 4 KiB is what a host's pages are.
        Backing::Ram { size } => OpenMedium::ram(*size, block_size.unwrap_or(4096))?,
        Backing::Null { size } => OpenMedium::null(*size, block_size.unwrap_or(4096))?,
    };
    Ok(if namespace.read_only { medium.protected() } else { medium })
}

/// Makes a sparse file of `size` bytes, and says so; nothing if there is one.
fn make(path: &Path, size: u64) -> Result<bool, MediaError> {
    let file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        file => file,
    };
    file.and_then(|file| file.set_len(size).and_then(|()| file.sync_all()))
        .map(|()| true)
        .map_err(|source| MediaError::Create { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(namespace: &str) -> Config {
        let text = format!("[[subsystem]]\nnamespace = [{{ {namespace} }}]\n");
        Config::parse(Path::new("target.toml"), &text).unwrap()
    }

    #[test]
    fn a_missing_file_is_made_and_another_size_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        let named = |size: &str| config(&format!("path = {path:?}{size}"));
        assert!(matches!(open(&named("")), Err(MediaError::Missing { .. })));
        let made = open(&named(", size = \"1MiB\"")).unwrap();
        assert_eq!(made[0][0].size(), 1 << 20);
        drop(made);
        assert_eq!(open(&named("")).unwrap()[0][0].size(), 1 << 20);
        let other = open(&named(", size = \"2MiB\"")).unwrap_err();
        assert!(
            matches!(other, MediaError::OtherSize { found: 0x10_0000, wanted: 0x20_0000, .. }),
            "{other}"
        );
    }

    #[test]
    fn memory_and_nothing_have_the_size_they_were_given() {
        assert_eq!(open(&config("ram = \"1MiB\"")).unwrap()[0][0].size(), 1 << 20);
        let ram = &open(&config("ram = \"1MiB\", read-only = true")).unwrap()[0][0];
        assert!(ram.read_only());
        let null = &open(&config("null = \"1TiB\", lba = 512")).unwrap()[0][0];
        assert_eq!((null.size(), null.block_size()), (1 << 40, 512));
    }
}
