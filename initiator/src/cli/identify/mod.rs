//! Identify structures field by field, with nvme-cli's names and ways to write numbers.
mod fields;

use ironside_common::nvme::{identify, text};
use serde_json::{Map, Value as Json, json};

use super::arguments::Format;
use super::table::{json_number, print_json};
use crate::host::IDENTIFY_LENGTH;
use fields::{CONTROLLER, Field, NAMESPACE, POWER_STATE};

type Structure = [u8; IDENTIFY_LENGTH];

/// Where the power states of a controller are, and how long one is.
const POWER_STATES: usize = 2048;
const POWER_STATE_LENGTH: usize = 32;

/// How a field is written.
#[derive(Clone, Copy)]
enum Kind {
    Decimal,
    Hexadecimal,
    Text,
    /// An organisation's number: hexadecimal digits without a prefix.
    Oui,
    Uuid,
    Bytes,
}

/// Prints what a controller says of itself.
pub(super) fn print_controller(structure: &Structure, format: Format) {
    match format {
        Format::Normal => {
            println!("NVME Identify Controller:");
            for (name, text) in written(structure, CONTROLLER) {
                println!("{name:<10}: {text}");
            }
        }
        Format::Json => {
            let mut object = object(structure, CONTROLLER);
            object.insert("psds".into(), power_states(structure));
            print_json(&Json::Object(object));
        }
    }
}

/// Prints what a namespace is like.
pub(super) fn print_namespace(nsid: u32, structure: &Structure, format: Format) {
    match format {
        Format::Normal => {
            println!("NVME Identify Namespace {nsid}:");
            for (name, text) in written(structure, NAMESPACE) {
                println!("{name:<8}: {text}");
            }
            for (index, format, in_use) in formats(structure) {
                let (metadata, shift) = (format.metadata_size, format.block_shift);
                let (performance, mark) =
                    (format.relative_performance & 3, if in_use { " (in use)" } else { "" });
                println!("lbaf {index:2} : ms:{metadata:<3} lbads:{shift:<2} rp:{performance:#x}{mark}");
            }
        }
        Format::Json => {
            let formats = formats(structure).map(|(index, format, in_use)| {
                json!({
                    "lbaf": index,
                    "ms": format.metadata_size.get(),
                    "ds": format.block_shift,
                    "rp": format.relative_performance & 3,
                    "in_use": u8::from(in_use),
                })
            });
            let mut object = object(structure, NAMESPACE);
            object.insert("lbafs".into(), formats.collect());
            print_json(&Json::Object(object));
        }
    }
}

/// The formats a namespace may have, and whether each is the one it has.
fn formats(structure: &Structure) -> impl Iterator<Item = (usize, identify::LbaFormat, bool)> {
    let wire: &identify::Namespace = zerocopy::transmute_ref!(structure);
    let used = wire.format_index();
    let count = usize::from(wire.nlbaf) + 1;
    wire.formats.iter().take(count).enumerate().map(move |(index, format)| (index, *format, index == used))
}

fn power_states(structure: &Structure) -> Json {
    let count = usize::from(structure[263]) + 1;
    let states = structure[POWER_STATES..].chunks_exact(POWER_STATE_LENGTH).take(count.min(32));
    let one = |state: &[u8]| {
        let mut one = object(state, POWER_STATE);
        let (flags, idle, active, times, vault) = (state[3], state[18], state[22], state[26], state[27]);
        for (name, value) in [
            ("max_power_scale", flags & 1),
            ("non-operational_state", flags >> 1 & 1),
            ("idle_scale", idle >> 6),
            ("active_power_work", active & 7),
            ("active_scale", active >> 6),
            ("emerg_power_fail_recover_scale", times & 0xF),
            ("force_quiesce_vault_scale", times >> 4),
            ("emerg_power_fail_vault_scale", vault & 0xF),
        ] {
            one.insert(name.into(), value.into());
        }
        Json::Object(one)
    };
    states.map(one).collect()
}

fn written<'a>(
    structure: &'a [u8],
    fields: &'a [Field],
) -> impl Iterator<Item = (&'static str, String)> + 'a {
    fields.iter().map(|&(name, at, length, kind)| {
        let bytes = &structure[at..at + length];
        let text = match kind {
            Kind::Decimal => number(bytes).to_string(),
            Kind::Hexadecimal => format!("{:#x}", number(bytes)),
            Kind::Oui => format!("{:06x}", number(bytes)),
            Kind::Text | Kind::Uuid | Kind::Bytes => words(bytes, kind),
        };
        (name, text)
    })
}

fn object(structure: &[u8], fields: &[Field]) -> Map<String, Json> {
    let value = |&(name, at, length, kind): &Field| {
        let bytes = &structure[at..at + length];
        let value = match kind {
            Kind::Decimal | Kind::Hexadecimal | Kind::Oui => json_number(number(bytes)),
            Kind::Text | Kind::Uuid | Kind::Bytes => words(bytes, kind).into(),
        };
        (name.to_owned(), value)
    };
    fields.iter().map(value).collect()
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u128::from(byte))
}

fn words(bytes: &[u8], kind: Kind) -> String {
    match kind {
        Kind::Text => text::read(bytes),
        Kind::Uuid => uuid::Uuid::from_slice(bytes).unwrap_or_default().to_string(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn fields_lie_in_order_and_do_not_overlap() {
        for fields in [CONTROLLER, NAMESPACE] {
            let ends = fields.iter().map(|(_, at, length, _)| at + length);
            for (end, (name, next, ..)) in ends.zip(&fields[1..]) {
                assert!(end <= *next, "{name}");
            }
        }
    }

    #[test]
    fn a_controller_is_read_from_its_bytes() {
        let mut wire = identify::Controller::new_zeroed();
        wire.model[..9].copy_from_slice(b"A model  ");
        wire.ieee = [0x01, 0x02, 0xA3];
        wire.tnvmcap = [0xFF; 16];
        (wire.nn, wire.sgls, wire.msdbd) = (1024.into(), 0x0010_0005.into(), 1);
        wire.npss = 1;
        wire.power_states[1][..4].copy_from_slice(&[0x19, 0, 0, 0b11]);
        let structure: &Structure = zerocopy::transmute_ref!(&wire);
        let mut json = object(structure, CONTROLLER);
        assert_eq!((&json["mn"], &json["ieee"]), (&json!("A model"), &json!(0xA3_0201)));
        assert_eq!(
            (&json["nn"], &json["sgls"], &json["msdbd"]),
            (&json!(1024), &json!(0x10_0005), &json!(1))
        );
        assert_eq!(json.remove("tnvmcap"), Some(json!(u128::MAX.to_string())));
        let states = power_states(structure);
        assert_eq!((&states[1]["max_power"], &states[1]["max_power_scale"]), (&json!(0x19), &json!(1)));
        assert_eq!((states.as_array().unwrap().len(), &states[1]["non-operational_state"]), (2, &json!(1)));
        let text: Map<_, _> =
            written(structure, CONTROLLER).map(|(name, text)| (name.to_owned(), text.into())).collect();
        assert_eq!((&text["ieee"], &text["sgls"]), (&json!("a30201"), &json!("0x100005")));
    }

    #[test]
    fn a_namespace_is_read_from_its_bytes() {
        let mut wire = identify::Namespace::new_zeroed();
        (wire.nsze, wire.nlbaf, wire.flbas, wire.anagrpid) = (7.into(), 1, 1, 3.into());
        wire.eui64[7] = 9;
        (wire.formats[0].block_shift, wire.formats[1].block_shift) = (9, 12);
        let structure: &Structure = zerocopy::transmute_ref!(&wire);
        let json = object(structure, NAMESPACE);
        assert_eq!((&json["nsze"], &json["anagrpid"]), (&json!(7), &json!(3)));
        assert_eq!(json["eui64"], "0000000000000009");
        let formats: Vec<_> =
            formats(structure).map(|(_, format, used)| (format.block_shift, used)).collect();
        assert_eq!(formats, [(9, false), (12, true)]);
    }
}
