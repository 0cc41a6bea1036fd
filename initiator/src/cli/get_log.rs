//! `ironside get-log`: any log page, as bytes.
use clap::Args;
use ironside_common::nvme::ALL_NAMESPACES;
use ironside_common::nvme::admin::GetLogPage;
use ironside_common::nvme::log_page::LogPageId;

use super::arguments::number;
use super::error::CliError;
use super::inquiry::Subject;
use super::log_page;
use super::table::{hexdump, write_raw};

/// Show a log page of a controller, byte by byte
///
/// Of an attached device or, with -a and -n, of a controller that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// The log page
    #[arg(short = 'i', long, value_name = "LID", value_parser = number::<u8>)]
    log_id: u8,
    /// Bytes to read: a multiple of 4
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = number::<u64>)]
    log_len: u64,
    /// From which byte on
    #[arg(short = 'o', short_alias = 'L', long, value_name = "OFFSET", value_parser = number::<u64>, default_value = "0")]
    lpo: u64,
    /// The namespace; all unless given
    #[arg(long, visible_alias = "nsid", value_name = "NSID", value_parser = number::<u32>, default_value_t = ALL_NAMESPACES, hide_default_value = true)]
    namespace_id: u32,
    /// What the page is asked for in particular; -s where a device is named
    #[arg(long, value_name = "LSP", value_parser = clap::value_parser!(u8).range(0..=127))]
    lsp: Option<u8>,
    /// The command set
    #[arg(short = 'y', long, value_name = "CSI", default_value_t = 0)]
    csi: u8,
    /// Leave the event which the page belongs to
    #[arg(short = 'r', long)]
    rae: bool,
    /// Write the bytes as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
}

/// Bytes of a page read at most: what is asked for lies in memory.
const LENGTH_MAX: u64 = 64 << 20;

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let subject = &arguments.subject;
    let asked = asked(arguments)?;
    let page = log_page::read(subject, asked)?;
    if arguments.raw_binary {
        return write_raw(&page);
    }
    let (name, GetLogPage { page: LogPageId(lid), nsid, .. }) = (subject.name(), asked);
    print!("Device:{name} log-id:{lid} namespace-id:{nsid:#x}\n{}", hexdump(&page));
    Ok(())
}

fn asked(arguments: &Arguments) -> Result<GetLogPage, CliError> {
    let &Arguments { log_len: length, lpo: offset, csi, rae: retain_event, .. } = arguments;
    if length == 0 || !length.is_multiple_of(4) {
        return Err(CliError::LogLength);
    }
    if length > LENGTH_MAX {
        return Err(CliError::LogTooLong(length));
    }
    let lsp = arguments.lsp.map(u16::from).or(arguments.subject.short_s()).unwrap_or(0);
    let specific = u8::try_from(lsp).ok().filter(|&lsp| lsp < 128).ok_or(CliError::LogSpecific(lsp))?;
    let all = GetLogPage::new(LogPageId(arguments.log_id), arguments.namespace_id, 4);
    Ok(GetLogPage { length, offset, specific, retain_event, csi, ..all })
}
