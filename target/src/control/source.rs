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
    /// Whether changes are kept there: not in a pipe, and not in nvmetcli's file, which has no place for all that we have. It is
    /// decided when it is read, so that a file which is away for a moment is missed.
    is_kept: bool,
    text: String,
}

/// A text which lies beside the file it is to replace, and goes unless it does.
#[derive(Debug)]
pub struct Pending {
    text: String,
    places: Option<Places>,
}

#[derive(Debug)]
struct Places {
    /// Where it lies.
    draft: PathBuf,
    /// The file itself, whichever links lead there.
    file: PathBuf,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(places) = self.places.take() {
            let _ = fs::remove_file(places.draft);
        }
    }
}

impl Source {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(path: &Path) -> Result<(Config, Self), ConfigError> {
        let is_file = !matches!(fs::metadata(path), Ok(found) if !found.is_file());
        let text = Config::read(path)?;
        let config = Config::parse(path, &text)?;
        let is_foreign = Config::is_foreign(&text);
        let text = if is_foreign { render(&config) } else { text };
        Ok((config, Self { path: Some(path.to_owned()), is_kept: is_file && !is_foreign, text }))
    }

    /// What flags said: what changes it is kept nowhere.
    pub fn of_flags(config: &Config) -> Self {
        Self { path: None, is_kept: false, text: render(config) }
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
        self.path.as_deref().filter(|_| self.is_kept)
    }

    /// The configuration in force, about to be changed. The subsystem it does not name is `unnamed`.
    ///
    /// # Errors
    /// If the file says something else by now, says it wrong, or cannot be read: whoever did that has to have it read first.
    pub fn draft(&self, unnamed: Option<Nqn>) -> Result<Draft, Failure> {
        if let Some(path) = self.kept_in() {
            self.check_unedited(path)?;
        }
        let origin = self.path.as_deref().unwrap_or(Path::new("configuration"));
        Ok(Draft::new(origin, &self.text, unnamed)?)
    }

    fn check_unedited(&self, path: &Path) -> Result<(), Failure> {
        Config::check_regular(path).map_err(Failure::Lost)?;
        match Config::read(path).map_err(Failure::Lost)? == self.text {
            true => Ok(()),
            false => Err(Failure::Edited(path.display().to_string())),
        }
    }

    /// Writes another text beside the file, where there is one.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn write(&self, text: String) -> Result<Pending, Failure> {
        let Some(path) = self.kept_in().filter(|_| text != self.text) else {
            return Ok(Pending { text, places: None });
        };
        // A link leads to the file which is to be another.
        let failed = |source| Failure::NotKept { path: path.display().to_string(), source };
        let file = path.canonicalize().map_err(failed)?;
        let draft = file.with_file_name(draft_name(&file));
        let pending = Pending { text, places: Some(Places { draft, file }) };
        write_like(&pending).map_err(failed)?;
        Ok(pending)
    }

    /// Has the file be what was written beside it, unless somebody has edited it since.
    ///
    /// # Errors
    /// If that cannot be: then what is in force is not in the file. The next change goes out from the file once more.
    pub fn keep(&mut self, mut pending: Pending) -> Result<(), Failure> {
        if let (Some(places), Some(path)) = (&pending.places, &self.path) {
            let failed = |reason: String| Failure::InForce { path: path.display().to_string(), reason };
            self.check_unedited(path).map_err(|error| failed(error.to_string()))?;
            let replaced = match path.canonicalize() {
                Ok(file) if file != places.file => return Err(failed("it is another file by now".into())),
                Ok(_) => fs::rename(&places.draft, &places.file),
                Err(error) => Err(error),
            };
            replaced.map_err(|error| failed(error.to_string()))?;
        }
        self.text = std::mem::take(&mut pending.text);
        let Some(Places { file, .. }) = pending.places.take() else { return Ok(()) };
        sync_directory_of(&file).map_err(|error| Failure::InForce {
            path: file.display().to_string(),
            reason: format!("it says so already, but may not after a loss of power: {error}"),
        })
    }
}

/// A name beside a file which no operator gives to one of his.
fn draft_name(file: &Path) -> OsString {
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".ironside-{}", std::process::id()));
    name
}

/// Writes it with the owner and the rights of the file it is to replace.
fn write_like(pending: &Pending) -> io::Result<()> {
    let Some(Places { draft, file }) = &pending.places else { return Ok(()) };
    let before = fs::metadata(file)?;
    // What an earlier process of the same number left behind is in the way.
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
    fn a_file_which_is_away_is_missed() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        let (_, mut source) = Source::load(&path).unwrap();
        let pending = source.write("control = \"d\"\n".into()).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(source.kept_in(), Some(path.as_path()));
        let refused = source.draft(None).unwrap_err();
        assert!(matches!(refused, Failure::Lost(_)), "{refused}");
        assert!(matches!(source.write("control = \"e\"\n".into()), Err(Failure::NotKept { .. })));
        assert!(matches!(source.keep(pending), Err(Failure::InForce { .. })));
        assert_eq!((source.text(), fs::read_dir(directory.path()).unwrap().count()), (TEXT, 0));
        fs::create_dir(&path).unwrap();
        assert!(matches!(source.draft(None), Err(Failure::Lost(_))), "it is no file any more");
    }

    #[test]
    fn an_edit_while_a_change_takes_its_time_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        let (_, mut source) = Source::load(&path).unwrap();
        let neighbour = directory.path().join("target.toml.new");
        fs::write(&neighbour, "his").unwrap();
        let pending = source.write("control = \"d\"\n".into()).unwrap();
        fs::write(&path, "control = \"e\"\n").unwrap();
        let said = source.keep(pending).unwrap_err().to_string();
        assert!(said.contains("in force, but not kept") && said.contains("has been changed"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "control = \"e\"\n");
        assert_eq!(fs::read_to_string(&neighbour).unwrap(), "his");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside it");
        fs::write(&path, TEXT).unwrap();
        source.draft(None).expect("what was not kept is not what the file is compared with");
        let pending = source.write("control = \"f\"\n".into()).unwrap();
        source.keep(pending).unwrap();
        assert_eq!(
            (source.text(), fs::read_to_string(&path).unwrap().as_str()),
            ("control = \"f\"\n", source.text())
        );
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
