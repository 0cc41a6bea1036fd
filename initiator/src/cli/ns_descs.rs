//! `ironside ns-descs`: the names a namespace has, laid out as nvme-cli does.
use std::fmt::Write;

use clap::Args;
use ironside_common::nvme::admin::{Cns, Identify};
use ironside_common::nvme::identify::{self, Descriptor};
use serde_json::{Value, json};

use super::arguments::{Format, Output, number};
use super::error::CliError;
use super::inquiry::Subject;
use super::table::{print_json, write_raw};

/// Show the names a namespace has: UUID, NGUID, EUI64 and command set
///
/// Of an attached device or, with -a and -n, of a subsystem that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// The namespace; that of the device, or the only one, unless given
    #[arg(long, visible_alias = "nsid", value_name = "NSID", value_parser = number::<u32>)]
    namespace_id: Option<u32>,
    /// Write the bytes as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
    /// Tell where each descriptor lies too
    #[arg(short = 'v', long)]
    verbose: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let nsid = arguments.subject.nsid(arguments.namespace_id)?;
    let command = Identify::new(Cns::NAMESPACE_DESCRIPTORS, nsid).to_command(0);
    let list = arguments.subject.ask(command, identify::SIZE)?.data;
    if arguments.raw_binary {
        return write_raw(&list);
    }
    let named = named(&list);
    match arguments.output.output_format {
        Format::Normal => print!("{}", in_words(&named, nsid, arguments.verbose)),
        Format::Json => print_json(&json_of(&named)),
    }
    Ok(())
}

/// A descriptor whose type is known.
struct Named {
    at: usize,
    kind: u8,
    length: usize,
    name: &'static str,
    value: String,
}

fn named(list: &[u8]) -> Vec<Named> {
    let mut next = 0;
    let one = |descriptor: Descriptor<'_>| {
        let (kind, length, known) = match descriptor {
            Descriptor::Eui64(eui64) => {
                (1, 8, Some(("eui64", format!("{:016x}", u64::from_be_bytes(eui64)))))
            }
            Descriptor::Nguid(nguid) => (2, 16, Some(("nguid", nguid.simple().to_string()))),
            Descriptor::Uuid(uuid) => (3, 16, Some(("uuid", uuid.to_string()))),
            Descriptor::CommandSet(csi) => {
                // As C writes it, which has no 0x before a zero.
                (4, 1, Some(("csi", if csi == 0 { "0".into() } else { format!("{csi:#x}") })))
            }
            Descriptor::Unknown { kind, value } => (kind, value.len(), None),
        };
        let at = next;
        next += identify::DESCRIPTOR_HEAD + length;
        known.map(|(name, value)| Named { at, kind, length, name, value })
    };
    identify::descriptors(list).filter_map(one).collect()
}

fn in_words(descriptors: &[Named], nsid: u32, verbose: bool) -> String {
    let mut text = format!("NVME Namespace Identification Descriptors NS {nsid}:\n");
    for Named { at, kind, length, name, value } in descriptors {
        if verbose {
            writeln!(text, "loc     : {at}\nnidt    : {kind}\nnidl    : {length}\ntype    : {name}")
                .expect("a string takes what is written");
        }
        writeln!(text, "{name:<8}: {value}").expect("a string takes what is written");
    }
    text
}

fn json_of(descriptors: &[Named]) -> Value {
    let one = |Named { at, kind, length, name, value }: &Named| json!({ "loc": at, "nidt": kind, "nidl": length, "Type": name, *name: value });
    // Without one there is no list either.
    match descriptors {
        [] => json!({}),
        descriptors => json!({ "ns-descs": descriptors.iter().map(one).collect::<Value>() }),
    }
}

#[cfg(test)]
mod tests {
    use ironside_common::nvme::identify::DescriptorWriter;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn names_are_laid_out_as_nvme_cli_does() {
        let mut list = [0; 4096];
        let mut writer = DescriptorWriter::new(&mut list);
        writer.push(&Descriptor::Unknown { kind: 9, value: &[1, 2] });
        writer.push(&Descriptor::Uuid(Uuid::from_u128(1)));
        writer.push(&Descriptor::Eui64([0xAB; 8]));
        writer.push(&Descriptor::CommandSet(0));
        let named = named(&list);
        assert_eq!(
            in_words(&named, 5, false),
            "NVME Namespace Identification Descriptors NS 5:\nuuid    : 00000000-0000-0000-0000-000000000001\n\
             eui64   : abababababababab\ncsi     : 0\n"
        );
        assert!(
            in_words(&named, 5, true).contains("loc     : 26\nnidt    : 1\nnidl    : 8\ntype    : eui64\n")
        );
        let json = json_of(&named);
        assert_eq!(
            json["ns-descs"][0],
            json!({ "loc": 6, "nidt": 3, "nidl": 16, "Type": "uuid", "uuid": Uuid::from_u128(1).to_string() })
        );
        assert_eq!(json_of(&[]), json!({}));
    }
}
