//! Where the secrets of DH-HMAC-CHAP come from: files, nvme-cli's configuration, or the command line, where others see
//! them. The process behind an attachment gets them by a pipe, and nothing of ours writes them down.
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ironside_common::auth::{Keys, Secret, SecretError, SecretFileError};
use ironside_common::nvme::Nqn;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::host::HostOptions;

/// Where nvme-cli has its own configuration, and the secret of hosts for which that has none.
const DIRECTORY: &str = "/etc/nvme";
const CONFIGURATION: &str = "config.json";
const HOST_KEY: &str = "hostkey";

#[derive(Args, Clone)]
pub(super) struct Secrets {
    /// Secret of this host (DHHC-1:…); others see it in the list of processes: better use --dhchap-secret-file
    #[arg(short = 'S', long, value_name = "SECRET", conflicts_with = "dhchap_secret_file")]
    dhchap_secret: Option<String>,
    /// Secret by which the controller has to authenticate; better use --dhchap-ctrl-secret-file
    #[arg(short = 'C', long, value_name = "SECRET", conflicts_with = "dhchap_ctrl_secret_file")]
    dhchap_ctrl_secret: Option<String>,
    /// File of mode 0600 with the secret of this host; without one, /etc/nvme/config.json and hostkey are looked at
    #[arg(long, value_name = "FILE")]
    dhchap_secret_file: Option<PathBuf>,
    /// File of mode 0600 with the secret by which the controller has to authenticate
    #[arg(long, value_name = "FILE")]
    dhchap_ctrl_secret_file: Option<PathBuf>,
}

/// Where to look for secrets. This is kept as long as the attachment.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Source {
    secret_file: Option<PathBuf>,
    ctrl_secret_file: Option<PathBuf>,
}

/// What a command line says, the files in words of where they are.
#[derive(Clone, Default, Deserialize, Serialize)]
pub(super) struct Given {
    secret: Option<Zeroizing<String>>,
    ctrl_secret: Option<Zeroizing<String>>,
    source: Source,
    /// It is the command line which says so, not nvme-cli's configuration.
    is_said: bool,
}

/// Why there are no secrets though there should be.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error("the secret of this host: {0}")]
    Host(SecretError),
    #[error("the secret of the controller: {0}")]
    Controller(SecretError),
    #[error(transparent)]
    File(#[from] SecretFileError),
    #[error("a secret of the controller takes one of this host too: give --dhchap-secret-file")]
    ControllerAlone,
    #[error("{0} cannot be read: {1}")]
    Configuration(PathBuf, String),
}

impl Secrets {
    /// Warns if somebody else may have seen them.
    pub(super) fn given(&self, options: &HostOptions) -> Result<Given, SecretsError> {
        if self.dhchap_secret.is_some() || self.dhchap_ctrl_secret.is_some() {
            eprintln!(
                "ironside: a secret on the command line is seen by everybody on this machine; \
                 --dhchap-secret-file and --dhchap-ctrl-secret-file keep it"
            );
        }
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let given = Given {
            secret: self.dhchap_secret.clone().map(Zeroizing::new),
            ctrl_secret: self.dhchap_ctrl_secret.clone().map(Zeroizing::new),
            source: Source {
                secret_file: self.dhchap_secret_file.as_ref().map(absolute),
                ctrl_secret_file: self.dhchap_ctrl_secret_file.as_ref().map(absolute),
            },
            is_said: false,
        };
        if given.has_any() {
            return Ok(Given { is_said: true, ..given });
        }
        configured(Path::new(DIRECTORY), options)
    }
}

impl Given {
    /// What was given once, as far as it was written down where.
    pub(super) fn again(source: &Source, options: &HostOptions) -> Result<Self, SecretsError> {
        match source {
            Source { secret_file: None, ctrl_secret_file: None } => configured(Path::new(DIRECTORY), options),
            source => Ok(Self { source: source.clone(), ..Self::default() }),
        }
    }

    pub(super) fn source(&self) -> Source {
        self.source.clone()
    }

    /// The secrets as they are where they were found, by now. What the command line itself said stays.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub(super) fn read_again(&self, options: &HostOptions) -> Result<Option<Arc<Keys>>, SecretsError> {
        if self.is_said {
            return self.source.keys(self);
        }
        let again = Self::again(&self.source, options)?;
        again.source.keys(&again)
    }

    /// Whether the command line says anything of secrets.
    pub(super) const fn is_said(&self) -> bool {
        self.is_said
    }

    const fn has_any(&self) -> bool {
        self.secret.is_some()
            || self.ctrl_secret.is_some()
            || self.source.secret_file.is_some()
            || self.source.ctrl_secret_file.is_some()
    }
}

impl Source {
    /// The secrets, if there are any. Files are read anew.
    pub(super) fn keys(&self, given: &Given) -> Result<Option<Arc<Keys>>, SecretsError> {
        let host = secret(given.secret.as_ref(), self.secret_file.as_deref(), SecretsError::Host)?;
        let controller =
            secret(given.ctrl_secret.as_ref(), self.ctrl_secret_file.as_deref(), SecretsError::Controller)?;
        match (host, controller) {
            (Some(host), controller) => Ok(Some(Arc::new(Keys { host, controller }))),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(SecretsError::ControllerAlone),
        }
    }
}

/// The secret which is said, else that of the file, if there is either.
fn secret(
    said: Option<&Zeroizing<String>>,
    file: Option<&Path>,
    unreadable: impl FnOnce(SecretError) -> SecretsError,
) -> Result<Option<Secret>, SecretsError> {
    match (said, file) {
        (Some(text), _) => text.parse().map(Some).map_err(unreadable),
        (None, Some(file)) => Ok(Some(Secret::read(file)?)),
        (None, None) => Ok(None),
    }
}

/// The keys which nvme-cli's files have: its configuration for this host, subsystem and address, the more particular
/// before the general; and the key of whichever host, if there is none of this one.
fn configured(directory: &Path, options: &HostOptions) -> Result<Given, SecretsError> {
    let Given { secret, ctrl_secret, .. } = match text_of(&directory.join(CONFIGURATION))? {
        Some(text) => in_configuration(&directory.join(CONFIGURATION), &text, options)?,
        None => Given::default(),
    };
    let secret = match secret {
        Some(secret) => Some(secret),
        None => text_of(&directory.join(HOST_KEY))?.map(|text| Zeroizing::new(text.trim().to_owned())),
    };
    Ok(Given { secret, ctrl_secret, ..Given::default() })
}

/// What is in a file; nothing if there is none.
fn text_of(path: &Path) -> Result<Option<Zeroizing<String>>, SecretsError> {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        // Whoever may not read it connects to what asks for no secret.
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => Ok(None),
        Err(error) => Err(SecretsError::Configuration(path.into(), error.to_string())),
    }
}

fn in_configuration(path: &Path, text: &str, options: &HostOptions) -> Result<Given, SecretsError> {
    let failed = |error: String| SecretsError::Configuration(path.into(), error);
    let root: Value = serde_json::from_str(text).map_err(|error| failed(error.to_string()))?;
    let hosts = root.as_array().or_else(|| root["hosts"].as_array());
    let address =
        options.address.socket().map_or_else(|| options.address.to_string(), |at| at.ip().to_string());
    let named = |value: &&Value, key: &str, name: &Nqn| value[key].as_str() == Some(name.as_str());
    let host = hosts.and_then(|hosts| hosts.iter().find(|one| named(one, "hostnqn", &options.host_nqn)));
    let Some(host) = host else { return Ok(Given::default()) };
    let subsystems = host["subsystems"].as_array();
    let subsystem = subsystems.and_then(|all| all.iter().find(|one| named(one, "nqn", &options.nqn)));
    let ports = subsystem.and_then(|subsystem| subsystem["ports"].as_array());
    let port = ports.and_then(|all| all.iter().find(|one| one["traddr"].as_str() == Some(address.as_str())));
    let places = [port, subsystem, Some(host)];
    let key = |name: &str| {
        let found = places.iter().flatten().find_map(|place| place[name].as_str());
        found.map(|text| Zeroizing::new(text.to_owned()))
    };
    Ok(Given { secret: key("dhchap_key"), ctrl_secret: key("dhchap_ctrl_key"), ..Given::default() })
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").field("source", &self.source).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn options() -> HostOptions {
        let nqn = |name: &str| format!("nqn.2014-08.org.example:{name}").parse().unwrap();
        HostOptions::new("192.0.2.1:4420".parse().unwrap(), nqn("disk"), nqn("me"), uuid::Uuid::nil())
    }

    #[test]
    fn nvme_cli_s_configuration_is_understood() {
        let directory = tempfile::tempdir().unwrap();
        let configured = |options: &HostOptions| configured(directory.path(), options);
        let path = directory.path().join("config.json");
        assert!(!configured(&options()).unwrap().has_any(), "there need not be one");
        let text = format!(
            r#"[{{"hostnqn": "nqn.2014-08.org.example:me", "dhchap_key": "{KEY}", "subsystems": [
                {{"nqn": "nqn.2014-08.org.example:disk", "ports": [
                    {{"transport": "rdma", "traddr": "192.0.2.1", "dhchap_ctrl_key": "of the port"}}]}}]}}]"#
        );
        for text in [text.clone(), format!(r#"{{"hosts": {text}}}"#)] {
            std::fs::write(&path, text).unwrap();
            let given = configured(&options()).unwrap();
            assert_eq!(given.secret.as_deref().map(String::as_str), Some(KEY));
            assert_eq!(given.ctrl_secret.as_deref().map(String::as_str), Some("of the port"));
            assert!(!format!("{given:?}").contains("of the port"));
            let mut other = options();
            other.host_nqn = other.nqn;
            assert!(!configured(&other).unwrap().has_any());
        }
        std::fs::write(directory.path().join("hostkey"), "DHHC-1:00:other:\n").unwrap();
        let secret = |options: HostOptions| configured(&options).unwrap().secret.unwrap();
        assert_eq!(secret(options()).as_str(), KEY);
        let other = HostOptions { host_nqn: options().nqn, ..options() };
        assert_eq!(secret(other).as_str(), "DHHC-1:00:other:");
        std::fs::write(&path, "{").unwrap();
        assert!(configured(&options()).is_err());
    }

    #[test]
    fn secrets_are_given_whole_or_not_at_all() {
        let given = |secret: Option<&str>, ctrl_secret: Option<&str>| Given {
            secret: secret.map(|text| Zeroizing::new(text.into())),
            ctrl_secret: ctrl_secret.map(|text| Zeroizing::new(text.into())),
            ..Given::default()
        };
        let keys = |given: &Given| given.source().keys(given);
        assert!(keys(&given(None, None)).unwrap().is_none());
        assert!(keys(&given(Some(KEY), None)).unwrap().unwrap().controller.is_none());
        assert!(keys(&given(Some(KEY), Some(KEY))).unwrap().unwrap().controller.is_some());
        assert!(matches!(keys(&given(None, Some(KEY))), Err(SecretsError::ControllerAlone)));
        assert!(matches!(keys(&given(Some("x"), None)), Err(SecretsError::Host(_))));
        assert!(matches!(keys(&given(Some(KEY), Some("x"))), Err(SecretsError::Controller(_))));
    }
}
