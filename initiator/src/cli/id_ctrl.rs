//! `ironside id-ctrl`: Identify Controller, field by field.
use clap::Args;

use super::arguments::Output;
use super::error::CliError;
use super::identify;
use super::inquiry::{Subject, inquire};

/// Show what a controller says of itself
///
/// Of an attached device or, with -a and -n, of a controller that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let found = inquire(arguments.subject.resolve()?)?;
    identify::print_controller(&found.controller.identify, arguments.output.output_format);
    Ok(())
}
