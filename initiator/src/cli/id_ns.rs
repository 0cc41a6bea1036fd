//! `ironside id-ns`: Identify Namespace, field by field.
use clap::Args;
use ironside_common::nvme::identify::Namespace;

use super::arguments::{Format, Output};
use super::error::CliError;
use super::identify;
use super::inquiry::{Subject, choose, inquire};

/// Show what a namespace is like
///
/// Of an attached device or, with -a and -n, of a subsystem that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// The namespace; that of the device, or the only one, unless given
    #[arg(long, visible_alias = "nsid", value_name = "NSID")]
    namespace_id: Option<u32>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let asked = arguments.subject.resolve()?;
    let nsid = arguments.namespace_id.or(asked.nsid);
    let found = inquire(asked)?;
    let namespace = choose(&found, nsid)?;
    let structure: &Namespace = zerocopy::transmute_ref!(&*namespace.identify);
    let format = arguments.output.output_format;
    identify::print(
        &format!("NVME Identify Namespace {}", namespace.nsid),
        &identify::namespace(structure),
        format,
    );
    if format == Format::Normal {
        identify::formats(structure).for_each(|line| println!("{line}"));
    }
    Ok(())
}
