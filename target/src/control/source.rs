//! Where the configuration comes from, and where what changes it meanwhile is kept: the file an operator wrote, if there is one.
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use ironside_common::nvme::Nqn;

use super::config::{Config, ConfigError};
use super::draft::Draft;
use super::render::render;
use super::state_file::sync_directory_of;
use crate::rpc::Failure;

/// The text of the configuration in force, and its file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it was read, unless flags said it.
    path: Option<PathBuf>,
    text: String,
    /// It is nvmetcli's file, which has no place for all that we have: it is read only.
    is_foreign: bool,
}

/// A text which lies beside the file it is to replace, and goes unless it does.
#[derive(Debug)]
pub struct Pending {
    text: String,
    draft: Option<PathBuf>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            let _ = fs::remove_file(draft);
        }
    }
}

impl Source {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(path: &Path) -> Result<(Config, Self), ConfigError> {
        let text = Config::read(path)?;
        let config = Config::parse(path, &text)?;
        let is_foreign = Config::is_foreign(&text);
        let text = if is_foreign { render(&config) } else { text };
        Ok((config, Self { path: Some(path.to_owned()), text, is_foreign }))
    }

    /// What flags said: what changes it is kept nowhere.
    pub fn of_flags(config: &Config) -> Self {
        Self { path: None, text: render(config), is_foreign: false }
    }

    /// The same, read once more; what flags said is what is in force.
    ///
    /// # Errors
    /// As [`Self::load`], and if it is no regular file.
    pub fn again(&self, in_force: &Config) -> Result<(Config, Self), ConfigError> {
        match &self.path {
            Some(path) => {
                Config::check_regular(path)?;
                Self::load(path)
            }
            None => Ok((in_force.clone(), self.clone())),
        }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The file which changes are kept in: a regular one, which can be read again.
    pub fn kept_in(&self) -> Option<&Path> {
        self.path.as_deref().filter(|path| !self.is_foreign && path.is_file())
    }

    /// The configuration in force, about to be changed. The subsystem it does not name is `unnamed`.
    ///
    /// # Errors
    /// If the file says something else by now, or says it wrong: whoever wrote that has to have it read first.
    pub fn draft(&self, unnamed: Option<Nqn>) -> Result<Draft, Failure> {
        if let Some(path) = self.kept_in()
            && Config::read(path)? != self.text
        {
            return Err(Failure::Edited(path.display().to_string()));
        }
        let origin = self.path.as_deref().unwrap_or(Path::new("configuration"));
        Ok(Draft::new(origin, &self.text, unnamed)?)
    }

    /// Writes another text beside the file, where there is one.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn write(&self, text: String) -> Result<Pending, Failure> {
        let Some(path) = self.kept_in().filter(|_| text != self.text) else {
            return Ok(Pending { text, draft: None });
        };
        // A link leads to the file which is to be another.
        let failed = |source| Failure::NotKept { path: path.display().to_string(), source };
        let path = path.canonicalize().map_err(failed)?;
        let mut name = OsString::from(&path);
        name.push(".new");
        let pending = Pending { text, draft: Some(name.into()) };
        write_like(&path, &pending).map_err(failed)?;
        Ok(pending)
    }

    /// Has the file be what was written beside it.
    ///
    /// # Errors
    /// If that cannot be: then what is in force is not in the file.
    pub fn keep(&mut self, mut pending: Pending) -> Result<(), Failure> {
        self.text = std::mem::take(&mut pending.text);
        let (Some(draft), Some(path)) = (&pending.draft, &self.path) else { return Ok(()) };
        let replaced = path.canonicalize().and_then(|path| {
            fs::rename(draft, &path)?;
            sync_directory_of(&path)
        });
        replaced.map_err(|source| Failure::NotKept { path: path.display().to_string(), source })?;
        pending.draft = None;
        Ok(())
    }
}

/// Writes it with the owner and the rights of the file it is to replace.
fn write_like(path: &Path, pending: &Pending) -> io::Result<()> {
    let Some(draft) = &pending.draft else { return Ok(()) };
    let before = fs::metadata(path)?;
    // What an earlier process left behind is in the way.
    let _ = fs::remove_file(draft);
    let mut file = File::create_new(draft)?;
    file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o7777))?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
        fchown(&file, Some(before.uid()), Some(before.gid()))?;
    }
    file.write_all(pending.text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# mine\ncontrol = \"c\"\n";

    fn file(directory: &tempfile::TempDir) -> PathBuf {
        let path = directory.path().join("target.toml");
        fs::write(&path, TEXT).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        path
    }

    #[test]
    fn what_is_written_is_kept_as_a_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        let link = directory.path().join("link.toml");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let (_, mut source) = Source::load(&link).unwrap();
        let other = format!("{TEXT}crc = \"off\"\n");
        drop(source.write(other.clone()).unwrap());
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), fs::read_dir(directory.path()).unwrap().count()),
            (TEXT.into(), 2)
        );
        let pending = source.write(other.clone()).unwrap();
        source.keep(pending).unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), source.text()),
            (other.as_str(), other.as_str())
        );
        assert!(link.is_symlink() && fs::metadata(&path).unwrap().mode() & 0o777 == 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside it");
    }

    #[test]
    fn what_somebody_else_wrote_is_not_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        let (config, source) = Source::load(&path).unwrap();
        source.draft(None).unwrap();
        fs::write(&path, "control = \"d\"\n").unwrap();
        let refused = source.draft(None).unwrap_err().to_string();
        assert!(refused.contains("has been changed since") && refused.contains("reload"), "{refused}");
        let (again, source) = source.again(&config).unwrap();
        assert_eq!(again.control, Some("d".into()));
        source.draft(None).unwrap();
    }

    #[test]
    fn what_flags_said_is_kept_nowhere() {
        let config = Config::parse(Path::new("x"), "control = \"c\"\n").unwrap();
        let mut source = Source::of_flags(&config);
        assert_eq!((source.kept_in(), source.draft(None).unwrap().config()), (None, &config));
        let pending = source.write("control = \"e\"".into()).unwrap();
        source.keep(pending).unwrap();
        assert_eq!(source.text(), "control = \"e\"");
    }
}
