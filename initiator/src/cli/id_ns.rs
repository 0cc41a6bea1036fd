//! `ironside id-ns`: Identify Namespace, field by field.
use clap::Args;

use super::arguments::Output;
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
    identify::print_namespace(namespace.nsid, &namespace.identify, arguments.output.output_format);
    Ok(())
}
