//! A short visit to a controller: connect, ask what it is, leave.
use clap::Args;
use ironside_common::nvme::{Command, Nqn, QueueKind};

use super::arguments::{Target, Transport};
use super::attachment::{Attachment, Directory, Specification};
use super::error::CliError;
use super::secrets::{Given, Secrets};
use crate::attach::{self, AttachOptions, Crc, Description, Provider};
use crate::host::{Answer, HostOptions, Namespace, Passed, PassedData};

/// The port of NVMe over RDMA.
const PORT: u16 = 4420;

/// Whom to ask: something attached, or a controller by its address and name.
#[derive(Args, Debug)]
pub(super) struct Subject {
    /// An attached device or its name
    #[arg(value_name = "DEVICE", required_unless_present = "nqn")]
    device: Option<String>,
    /// The subsystem, if it is not attached
    #[arg(short = 'n', long, value_name = "NQN", conflicts_with = "device", requires = "traddr")]
    nqn: Option<Nqn>,
    /// Transport
    #[arg(short = 't', long, value_name = "TRTYPE", default_value = "rdma")]
    transport: Transport,
    /// Address of the target
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    traddr: Option<String>,
    /// Port of the target [default: 4420]
    #[arg(short = 's', long, value_name = "PORT")]
    trsvcid: Option<u16>,
    /// What carries the connection; as it is attached, or auto, unless given
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<Provider>,
    /// NQN of this host, instead of that in /etc/nvme/hostnqn
    #[arg(short = 'q', long, value_name = "NQN")]
    hostnqn: Option<Nqn>,
    /// Identifier of this host, instead of that in /etc/nvme/hostid
    #[arg(short = 'I', long, value_name = "UUID")]
    hostid: Option<uuid::Uuid>,
    #[command(flatten)]
    secrets: Secrets,
}

/// Whom to ask, made out.
pub(super) struct Asked {
    pub(super) options: HostOptions,
    pub(super) crc: Crc,
    pub(super) provider: Provider,
    /// The namespace of the attached device.
    pub(super) nsid: Option<u32>,
}

impl Asked {
    pub(super) fn attach_options(self) -> AttachOptions {
        AttachOptions { crc: self.crc, provider: self.provider, ..AttachOptions::new(self.options) }
    }
}

impl Subject {
    pub(super) fn resolve(&self) -> Result<Asked, CliError> {
        let asked = match &self.device {
            Some(device) => attached(device, &self.secrets)?,
            None => self.elsewhere()?,
        };
        Ok(Asked { provider: self.provider.unwrap_or(asked.provider), ..asked })
    }

    /// What to call it.
    pub(super) fn name(&self) -> String {
        let nqn = self.nqn.unwrap_or_else(Nqn::discovery);
        self.device.clone().unwrap_or_else(|| nqn.to_string())
    }

    /// What `-s` says where a device is named, which has no port to be told: nvme-cli has that letter for something else.
    pub(super) fn short_s(&self) -> Option<u16> {
        self.trsvcid.filter(|_| self.device.is_some())
    }

    /// Sends a command of the admin queue which reads so many bytes.
    pub(super) fn ask(&self, command: Command, length: u32) -> Result<Answer, CliError> {
        let data = if length == 0 { PassedData::None } else { PassedData::In(length) };
        pass(self.resolve()?, Passed { queue: QueueKind::Admin, command, data })
    }

    /// The namespace meant: the one named, that of the device, or the only one there is.
    pub(super) fn nsid(&self, named: Option<u32>) -> Result<u32, CliError> {
        let asked = self.resolve()?;
        match named.or(asked.nsid) {
            Some(nsid) => Ok(nsid),
            None => Ok(choose(&inquire(asked)?, None)?.nsid),
        }
    }

    fn elsewhere(&self) -> Result<Asked, CliError> {
        let target = Target {
            transport: self.transport,
            traddr: vec![self.traddr.clone().unwrap_or_default()],
            trsvcid: vec![self.trsvcid.unwrap_or(PORT)],
            hostnqn: self.hostnqn,
            hostid: self.hostid,
            crc: Crc::On,
            provider: Provider::Auto,
        };
        let nqn = self.nqn.unwrap_or_else(Nqn::discovery);
        let mut options = target.options(nqn)?;
        let given = self.secrets.given(&options)?;
        options.keys = given.source().keys(&given)?;
        Ok(Asked { options, crc: target.crc, provider: target.provider, nsid: None })
    }
}

fn attached(word: &str, secrets: &Secrets) -> Result<Asked, CliError> {
    let mut attachments = Directory::open()?.entries()?.into_iter().filter_map(|entry| entry.attachment);
    let found = attachments.find(|attachment| attachment.is_called(word));
    let attachment = found.ok_or_else(|| CliError::NoSuchAttachment(word.into()))?;
    let Attachment { specification, nsid, .. } = attachment;
    let mut options = specification.options();
    let given = secrets.given(&options)?;
    // What is said now comes before what was said when it was attached.
    let given = if given.is_said() { given } else { Given::again(&specification.secrets, &options)? };
    options.keys = given.source().keys(&given)?;
    let Specification { crc, provider, .. } = specification;
    Ok(Asked { options, crc, provider, nsid: Some(nsid) })
}

/// Asks the controller what it is.
pub(super) fn inquire(asked: Asked) -> Result<Description, CliError> {
    let options = Box::new(asked.options.clone());
    let found =
        attach::inquire(asked.attach_options()).map_err(|source| CliError::Attach { options, source })?;
    Target::remark(&found.carried);
    Ok(found)
}

/// Connects, sends one command and leaves.
pub(super) fn pass(asked: Asked, passed: Passed) -> Result<Answer, CliError> {
    let options = Box::new(asked.options.clone());
    attach::pass(asked.attach_options(), passed).map_err(|source| CliError::Attach { options, source })
}

/// The namespace meant: the one named, or the only one.
pub(super) fn choose(found: &Description, nsid: Option<u32>) -> Result<&Namespace, CliError> {
    let Description { namespaces, skipped, .. } = found;
    let namespaces = &namespaces[..];
    let found = || namespaces.iter().map(|namespace| namespace.nsid).collect();
    match (nsid, namespaces) {
        (Some(nsid), _) => {
            let named = namespaces.iter().find(|namespace| namespace.nsid == nsid);
            named.ok_or_else(|| CliError::NoSuchNamespace { nsid, found: found() })
        }
        (None, [only]) => Ok(only),
        (None, []) => Err(CliError::NoNamespace { skipped: skipped.clone() }),
        (None, _) => Err(CliError::WhichNamespace { found: found() }),
    }
}
