//! Identify structures field by field, with nvme-cli's names and ways to write numbers.
use ironside_common::nvme::identify::{Controller, Namespace};
use ironside_common::nvme::text;
use serde_json::{Map, Value as Json};

use super::arguments::Format;

/// How nvme-cli writes a field.
pub(super) enum Value {
    Decimal(u128),
    Hexadecimal(u64),
    Text(String),
}

pub(super) type Fields = Vec<(&'static str, Value)>;

/// Prints the fields below a title, or as one JSON object.
pub(super) fn print(title: &str, fields: &Fields, format: Format) {
    match format {
        Format::Normal => {
            println!("{title}:");
            for (name, value) in fields {
                println!("{name:<10}: {}", value.to_text());
            }
        }
        Format::Json => {
            let object: Map<String, Json> =
                fields.iter().map(|(name, value)| ((*name).to_owned(), value.to_json())).collect();
            super::table::print_json(&Json::Object(object));
        }
    }
}

impl Value {
    fn to_text(&self) -> String {
        match self {
            Self::Decimal(number) => number.to_string(),
            Self::Hexadecimal(number) => format!("{number:#x}"),
            Self::Text(text) => text.clone(),
        }
    }

    fn to_json(&self) -> Json {
        match self {
            // JSON has no numbers of 128 bits; nvme-cli writes such a field as a number where it can.
            Self::Decimal(number) => {
                u64::try_from(*number).map_or_else(|_| number.to_string().into(), Json::from)
            }
            Self::Hexadecimal(number) => (*number).into(),
            Self::Text(text) => text.clone().into(),
        }
    }
}

fn decimal(number: impl Into<u128>) -> Value {
    Value::Decimal(number.into())
}

fn hexadecimal(number: impl Into<u64>) -> Value {
    Value::Hexadecimal(number.into())
}

/// Identify Controller, in the order of the structure.
pub(super) fn controller(id: &Controller) -> Fields {
    let words = |field: &[u8]| Value::Text(text::read(field));
    let mut fields = vec![
        ("vid", hexadecimal(id.vid.get())),
        ("ssvid", hexadecimal(id.ssvid.get())),
        ("sn", words(&id.serial)),
        ("mn", words(&id.model)),
        ("fr", words(&id.firmware)),
        ("rab", decimal(id.rab)),
        ("ieee", Value::Text(id.ieee.iter().rev().map(|byte| format!("{byte:02x}")).collect())),
        ("cmic", hexadecimal(id.cmic)),
        ("mdts", decimal(id.mdts)),
        ("cntlid", hexadecimal(id.cntlid.get())),
        ("ver", hexadecimal(id.version.get())),
        ("rtd3r", hexadecimal(id.rtd3r_us.get())),
        ("rtd3e", hexadecimal(id.rtd3e_us.get())),
        ("oaes", hexadecimal(id.oaes.get())),
        ("ctratt", hexadecimal(id.ctratt.get())),
        ("cntrltype", decimal(id.controller_type)),
        ("fguid", Value::Text(uuid::Uuid::from_bytes(id.fguid).to_string())),
    ];
    let crdt = ["crdt1", "crdt2", "crdt3"].into_iter().zip(id.crdt);
    fields.extend(crdt.map(|(name, delay)| (name, decimal(delay.get()))));
    fields.extend(admin_fields(id));
    fields.extend(command_set_fields(id));
    fields.extend([
        ("subnqn", words(&id.subnqn)),
        ("ioccsz", decimal(id.ioccsz_16b.get())),
        ("iorcsz", decimal(id.iorcsz_16b.get())),
        ("icdoff", decimal(id.icdoff_16b.get())),
        ("fcatt", hexadecimal(id.fcatt)),
        ("msdbd", decimal(id.msdbd)),
        ("ofcs", hexadecimal(id.ofcs.get())),
    ]);
    fields
}

fn admin_fields(id: &Controller) -> Fields {
    vec![
        ("oacs", hexadecimal(id.oacs.get())),
        ("acl", decimal(id.acl)),
        ("aerl", decimal(id.aerl)),
        ("frmw", hexadecimal(id.frmw)),
        ("lpa", hexadecimal(id.lpa)),
        ("elpe", decimal(id.elpe)),
        ("npss", decimal(id.npss)),
        ("avscc", hexadecimal(id.avscc)),
        ("apsta", hexadecimal(id.apsta)),
        ("wctemp", decimal(id.wctemp_k.get())),
        ("cctemp", decimal(id.cctemp_k.get())),
        ("mtfa", decimal(id.mtfa.get())),
        ("hmpre", decimal(id.hmpre.get())),
        ("hmmin", decimal(id.hmmin.get())),
        ("tnvmcap", decimal(u128::from_le_bytes(id.tnvmcap))),
        ("unvmcap", decimal(u128::from_le_bytes(id.unvmcap))),
        ("rpmbs", hexadecimal(id.rpmbs.get())),
        ("edstt", decimal(id.edstt.get())),
        ("dsto", decimal(id.dsto)),
        ("fwug", decimal(id.fwug)),
        ("kas", decimal(id.kas_100ms.get())),
        ("endgidmax", decimal(id.endgidmax.get())),
        ("anatt", decimal(id.anatt_s)),
        ("anacap", decimal(id.anacap)),
        ("anagrpmax", decimal(id.anagrpmax.get())),
        ("nanagrpid", decimal(id.nanagrpid.get())),
    ]
}

fn command_set_fields(id: &Controller) -> Fields {
    vec![
        ("sqes", hexadecimal(id.sqes)),
        ("cqes", hexadecimal(id.cqes)),
        ("maxcmd", decimal(id.maxcmd.get())),
        ("nn", decimal(id.nn.get())),
        ("oncs", hexadecimal(id.oncs.get())),
        ("fuses", hexadecimal(id.fuses.get())),
        ("fna", hexadecimal(id.fna)),
        ("vwc", hexadecimal(id.vwc)),
        ("awun", decimal(id.awun.get())),
        ("awupf", decimal(id.awupf.get())),
        ("icsvscc", decimal(id.icsvscc)),
        ("nwpc", decimal(id.nwpc)),
        ("acwu", decimal(id.acwu.get())),
        ("ocfs", hexadecimal(id.ocfs.get())),
        ("sgls", hexadecimal(id.sgls.get())),
        ("mnan", decimal(id.mnan.get())),
    ]
}

/// Identify Namespace, in the order of the structure.
pub(super) fn namespace(id: &Namespace) -> Fields {
    let bytes = |field: &[u8]| Value::Text(field.iter().map(|byte| format!("{byte:02x}")).collect());
    vec![
        ("nsze", hexadecimal(id.nsze.get())),
        ("ncap", hexadecimal(id.ncap.get())),
        ("nuse", hexadecimal(id.nuse.get())),
        ("nsfeat", hexadecimal(id.nsfeat)),
        ("nlbaf", decimal(id.nlbaf)),
        ("flbas", hexadecimal(id.flbas)),
        ("mc", hexadecimal(id.mc)),
        ("dpc", hexadecimal(id.dpc)),
        ("dps", hexadecimal(id.dps)),
        ("nmic", hexadecimal(id.nmic)),
        ("rescap", hexadecimal(id.rescap)),
        ("fpi", hexadecimal(id.fpi)),
        ("dlfeat", decimal(id.dlfeat)),
        ("nawun", decimal(id.nawun.get())),
        ("nawupf", decimal(id.nawupf.get())),
        ("nacwu", decimal(id.nacwu.get())),
        ("nabsn", decimal(id.nabsn.get())),
        ("nabo", decimal(id.nabo.get())),
        ("nabspf", decimal(id.nabspf.get())),
        ("noiob", decimal(id.noiob.get())),
        ("nvmcap", decimal(u128::from_le_bytes(id.nvmcap))),
        ("npwg", decimal(id.npwg.get())),
        ("npwa", decimal(id.npwa.get())),
        ("npdg", decimal(id.npdg.get())),
        ("npda", decimal(id.npda.get())),
        ("nows", decimal(id.nows.get())),
        ("mssrl", decimal(id.mssrl.get())),
        ("mcl", decimal(id.mcl.get())),
        ("msrc", decimal(id.msrc)),
        ("anagrpid", decimal(id.anagrpid.get())),
        ("nsattr", decimal(id.nsattr)),
        ("nvmsetid", decimal(id.nvmsetid.get())),
        ("endgid", decimal(id.endgid.get())),
        ("nguid", bytes(&id.nguid)),
        ("eui64", bytes(&id.eui64)),
    ]
}

/// The formats of a namespace, one line each, as nvme-cli writes them below the fields.
pub(super) fn formats(id: &Namespace) -> impl Iterator<Item = String> {
    let used = id.format();
    let count = usize::from(id.nlbaf) + 1;
    id.formats.iter().take(count).enumerate().map(move |(index, format)| {
        let (metadata, shift, performance) =
            (format.metadata_size, format.block_shift, format.relative_performance);
        let mark = if Some(*format) == used { " (in use)" } else { "" };
        format!("lbaf {index:2} : ms:{metadata:<3} lbads:{shift:<2} rp:{performance:#x}{mark}")
    })
}
