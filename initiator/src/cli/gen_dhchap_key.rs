//! `ironside gen-dhchap-key` and `ironside check-dhchap-key`: secrets for authentication, made and looked at.
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::Args;
use ironside_common::auth::{Hash, Secret, SystemRandomness};
use ironside_common::nvme::Nqn;

use super::error::CliError;
use super::secrets::SecretsError;

/// Make a secret for authentication (DH-HMAC-CHAP)
///
/// It goes into the key file of the target, and with --dhchap-secret-file to the host. With a transformation it is of
/// use to whoever is called as the owner is, and to nobody else.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Hash which transforms it: 0 none, 1 SHA-256, 2 SHA-384, 3 SHA-512
    #[arg(short = 'm', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    hmac: u8,
    /// Bytes of the key, which a transformation decides: 32, 48 or 64
    #[arg(short = 'l', long, value_name = "BYTES")]
    key_length: Option<usize>,
    /// Whose it is to be; it is the same for everybody until it is used, so this is only checked
    #[arg(short = 'n', long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// Write it into this new file of mode 0600 instead of to standard output
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Say whether a secret for authentication is whole
#[derive(Args)]
pub(super) struct CheckArguments {
    /// The secret; others see it in the list of processes
    #[arg(
        short = 'k',
        long,
        value_name = "SECRET",
        required_unless_present = "file",
        conflicts_with = "file"
    )]
    key: Option<String>,
    /// File of mode 0600 with the secret
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let transformation = Hash::from_id(arguments.hmac);
    let natural = transformation.map_or(32, Hash::length);
    let length = arguments.key_length.unwrap_or(natural);
    let fits = transformation.map_or([32, 48, 64].contains(&length), |hash| hash.length() == length);
    if !fits {
        return Err(CliError::KeyLength { length, hmac: arguments.hmac });
    }
    let text = Secret::generate(transformation, length, &mut SystemRandomness).to_text();
    let Some(path) = &arguments.file else {
        println!("{}", text.as_str());
        return Ok(());
    };
    let system = |source| CliError::System { doing: "writing the key file", source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(system)?;
    writeln!(file, "{}", text.as_str()).and_then(|()| file.sync_all()).map_err(system)
}

pub(super) fn check(arguments: &CheckArguments) -> Result<(), CliError> {
    let secret = match (&arguments.key, &arguments.file) {
        (Some(key), _) => key.parse::<Secret>().map_err(SecretsError::Host)?,
        (None, Some(file)) => Secret::read(file).map_err(SecretsError::from)?,
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let transformation = secret.transformation().map_or_else(|| "none".into(), |hash| hash.to_string());
    println!("valid: {} bytes, transformation {transformation}", secret.length());
    Ok(())
}

impl std::fmt::Debug for CheckArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckArguments").field("file", &self.file).finish_non_exhaustive()
    }
}
