//! `ironside get-feature`: what a feature of a controller or namespace is set to, laid out as nvme-cli does.
mod fields;

use std::fmt::Write;

use clap::Args;
use ironside_common::nvme::admin::{self, GetFeatures};
use ironside_common::nvme::feature::{FeatureId, Select};
use ironside_common::nvme::{ALL_NAMESPACES, Status, Transfer};
use serde_json::{Map, Value, json};

use super::arguments::{Format, Output, number};
use super::error::CliError;
use super::inquiry::Subject;
use super::table::{hexdump, print_json, write_raw};
use fields::fields;

/// Show what a feature is set to
///
/// Of an attached device or, with -a and -n, of a controller that is not attached. Without -f, every feature it has.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// The feature; all unless given
    #[arg(short = 'f', long, value_name = "FID", value_parser = number::<u8>)]
    feature_id: Option<u8>,
    /// The namespace; that of the device, or all, unless given
    #[arg(long, visible_alias = "nsid", value_name = "NSID", value_parser = number::<u32>)]
    namespace_id: Option<u32>,
    /// Which value: 0 the current, 1 the default, 2 the saved, 3 what can be done to it; -s where a device is named
    #[arg(long, value_name = "SELECT", value_parser = clap::value_parser!(u8).range(0..=3))]
    sel: Option<u8>,
    /// Bytes of data which come with it, of a feature that is not known
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=4096))]
    data_len: Option<u32>,
    /// What the feature is asked for in particular; of the host identifier the extended one, as fabrics have no other
    #[arg(short = 'c', long, value_name = "CDW11", value_parser = number::<u32>)]
    cdw11: Option<u32>,
    /// Write the data as it is
    #[arg(short = 'b', long)]
    raw_binary: bool,
    /// Tell what is what in the value
    #[arg(short = 'H', long)]
    human_readable: bool,
    #[command(flatten)]
    output: Output,
}

impl Arguments {
    /// CDW11 of the command.
    fn dword(&self, feature: FeatureId) -> u32 {
        self.cdw11.unwrap_or(u32::from(feature == FeatureId::HOST_IDENTIFIER))
    }
}

/// What a feature is set to.
struct Got {
    feature: FeatureId,
    select: Select,
    value: u32,
    data: Vec<u8>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let mut got = Vec::new();
    match arguments.feature_id {
        Some(feature) => got.push(get(arguments, FeatureId(feature))?),
        None => {
            for feature in (1..=u8::MAX).map(FeatureId) {
                got.extend(get_if_there(arguments, feature)?);
            }
        }
    }
    if arguments.raw_binary && got.iter().any(|got| !got.data.is_empty()) {
        return got.iter().try_for_each(|got| write_raw(&got.data));
    }
    let human_readable = arguments.human_readable;
    match arguments.output.output_format {
        Format::Normal => got.iter().for_each(|got| print!("{}", in_words(got, human_readable))),
        Format::Json => {
            let objects = got.iter().flat_map(|got| objects(got, human_readable));
            print_json(&Value::Object(objects.collect::<Map<_, _>>()));
        }
    }
    Ok(())
}

fn get(arguments: &Arguments, feature: FeatureId) -> Result<Got, CliError> {
    let subject = &arguments.subject;
    let said = arguments.sel.map(u16::from).or(subject.short_s()).unwrap_or(0);
    let select = u8::try_from(said).ok().filter(|select| *select <= 3).ok_or(CliError::Select(said))?;
    let nsid = arguments.namespace_id.or(subject.resolve()?.nsid).unwrap_or(ALL_NAMESPACES);
    let get = GetFeatures { feature, select: Select(select), nsid, value: arguments.dword(feature) };
    let command = get.to_command(0);
    let length = match (admin::transfer(&command), arguments.data_len) {
        (_, Some(length)) => length,
        (Ok(Transfer::ToHost(length)), None) => length,
        // Of a feature nobody knows nothing but the value is asked for.
        (_, None) => 0,
    };
    let answer = subject.ask(command, length)?;
    // Dword 0 of the completion.
    let value = ironside_common::nvme::bits::bits(answer.result, 31, 0) as u32;
    Ok(Got { feature, select: Select(select), value, data: answer.data })
}

/// The same of a feature which the controller may not have; nothing if so.
fn get_if_there(arguments: &Arguments, feature: FeatureId) -> Result<Option<Got>, CliError> {
    let known = GetFeatures { value: arguments.dword(feature), ..GetFeatures::new(feature) };
    if admin::transfer(&known.to_command(0)).is_err() {
        return Ok(None);
    }
    match get(arguments, feature) {
        Err(error) if error.status().is_some_and(is_missing) => Ok(None),
        got => got.map(Some),
    }
}

fn is_missing(status: Status) -> bool {
    status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_NAMESPACE)
}

/// In nvme-cli's words.
fn name(feature: FeatureId) -> String {
    match feature {
        FeatureId::WRITE_ATOMICITY => "Write Atomicity Normal".into(),
        FeatureId::ASYNC_EVENT_CONFIGURATION => "Async Event Configuration".into(),
        FeatureId::HOST_BEHAVIOR => "Host Behavior".into(),
        FeatureId::NAMESPACE_WRITE_PROTECTION => "Namespace Write Protect".into(),
        FeatureId(0x08) => "Interrupt Coalescing".into(),
        FeatureId(0x09) => "Interrupt Vector Configuration".into(),
        known if !known.to_string().starts_with("feature ") => known.to_string(),
        _ => "Unknown".into(),
    }
}

const fn selected(select: Select) -> &'static str {
    match select {
        Select::CURRENT => "Current",
        Select::DEFAULT => "Default",
        Select::SAVED => "Saved",
        _ => "Supported capabilities",
    }
}

/// As C writes it, which has no 0x before a zero.
fn hexadecimal(value: u32) -> String {
    if value == 0 { "00000000".into() } else { format!("{value:#010x}") }
}

/// What can be done to a feature.
fn capabilities(value: u32) -> Vec<&'static str> {
    let names = [(1, "saveable"), (2, "per-namespace"), (4, "changeable")];
    names.into_iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| name).collect()
}

fn in_words(got: &Got, human_readable: bool) -> String {
    let &Got { feature, select, value, ref data } = got;
    let mut text = format!(
        "get-feature:{:#04x} ({}), {} value:{}\n",
        feature.0,
        name(feature),
        selected(select),
        hexadecimal(value)
    );
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes what is written");
    if select == Select::CAPABILITIES {
        capabilities(value).into_iter().for_each(|can| line(format!("  Feature is {can}")));
    } else if human_readable {
        for (name, value) in fields(feature, value, data) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            line(format!("\t{name}: {value}"));
        }
    } else if !data.is_empty() {
        line(hexdump(data).trim_end().to_owned());
    }
    text
}

/// An object of the value and, where asked for, another of what it means.
fn objects(got: &Got, human_readable: bool) -> Vec<(String, Value)> {
    let &Got { feature, select, value, ref data } = got;
    let mut object = json!({ "name": name(feature), selected(select): hexadecimal(value) });
    if !data.is_empty() && !human_readable {
        object["data"] = data.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    }
    let mut objects = vec![(format!("feature: {:#04x}", feature.0), json!([object]))];
    if select == Select::CAPABILITIES {
        objects.push((format!("Feature: {:#04x}: select", feature.0), capabilities(value).into()));
    } else if human_readable {
        let fields = fields(feature, value, data).into_iter();
        let fields: Map<_, _> = fields.map(|(name, value)| (name.to_owned(), value)).collect();
        objects.push((format!("Feature: {:#04x}", feature.0), json!([fields])));
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_laid_out_as_nvme_cli_does() {
        let got = |feature, select, value, data: &[u8]| Got { feature, select, value, data: data.to_vec() };
        let queues = got(FeatureId::NUMBER_OF_QUEUES, Select::CURRENT, 0x0003_0001, &[]);
        assert_eq!(
            in_words(&queues, false),
            "get-feature:0x07 (Number of Queues), Current value:0x00030001\n"
        );
        assert!(in_words(&queues, true).ends_with(
            "\tNumber of IO Completion Queues Allocated (NCQA): 4\n\tNumber of IO Submission Queues Allocated (NSQA): 2\n"
        ));
        assert_eq!(
            Value::Object(objects(&queues, true).into_iter().collect()),
            json!({
                "feature: 0x07": [{ "name": "Number of Queues", "Current": "0x00030001" }],
                "Feature: 0x07": [{
                    "Number of IO Completion Queues Allocated (NCQA)": 4,
                    "Number of IO Submission Queues Allocated (NSQA)": 2,
                }],
            })
        );
        let id = got(FeatureId::HOST_IDENTIFIER, Select::CURRENT, 0, &[1, 0, 0, 0, 0, 0, 0, 0]);
        assert!(
            in_words(&id, false).contains("value:00000000\n") && in_words(&id, false).contains("0000: 01 00")
        );
        assert_eq!(objects(&id, false)[0].1[0]["data"], "0100000000000000");
        let can = got(FeatureId(0xC0), Select::CAPABILITIES, 5, &[]);
        assert_eq!(
            in_words(&can, true),
            "get-feature:0xc0 (Unknown), Supported capabilities value:0x00000005\n  Feature is saveable\n  Feature is changeable\n"
        );
        assert_eq!(
            objects(&can, false)[1],
            ("Feature: 0xc0: select".into(), json!(["saveable", "changeable"]))
        );
    }
}
