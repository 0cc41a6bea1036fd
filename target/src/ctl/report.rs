//! Answers of a target in words: columns for people, in the order in which they look for them.
use std::fmt::Write as _;

use ironside_common::size::Size;
use ironside_common::verbs::Address;
use serde_json::{Value, json};

/// As scripts read it.
pub(super) fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// A listener as the RPC has it.
pub(super) fn address(at: Address) -> Value {
    match at.socket() {
        Some(at) => {
            json!({ "trtype": "RDMA", "traddr": at.ip().to_string(), "trsvcid": at.port().to_string() })
        }
        None => json!({ "trtype": "RDMA", "traddr": at.to_string() }),
    }
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// Columns as wide as they have to be; the last is not filled up.
pub(super) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = head.iter().map(|&text| text.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut all = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        all.push_str(line.trim_end());
        all.push('\n');
    }
    all
}

fn at(address: &Value) -> String {
    let (ip, port) = (text(&address["traddr"]), text(&address["trsvcid"]));
    if ip.starts_with('/') {
        return ip;
    }
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn size(bytes: u64) -> String {
    Size(bytes).to_string()
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = parts.collect();
    if all.is_empty() { "-".into() } else { all.join(",") }
}

pub(super) fn status(status: &Value) -> String {
    let of = |key: &str| text(&status[key]);
    let mut said = format!(
        "Ironside {}, process {}, version {} of what is served\nconfiguration: {}\nreactors: {}, connections: {}, \
         commands: {}\n",
        of("version"),
        of("pid"),
        of("catalog_version"),
        status["configuration"].as_str().unwrap_or("not kept: given by flags"),
        of("reactors"),
        of("connections"),
        of("commands"),
    );
    if list(&status["subsystems"]).next().is_none() {
        said.push_str("no subsystem is served\n");
        return said;
    }
    said.push('\n');
    let rows = list(&status["subsystems"]).map(|one| {
        vec![
            text(&one["nqn"]),
            text(&one["namespaces"]),
            size(one["bytes"].as_u64().unwrap_or_default()),
            joined(list(&one["listeners"]).map(text)),
            text(&one["controllers"]),
            joined(list(&one["hosts"]).map(text)),
        ]
    });
    said.push_str(&table(&["SUBSYSTEM", "NAMESPACES", "SIZE", "LISTENERS", "CONTROLLERS", "HOSTS"], rows));
    said
}

pub(super) fn subsystems(all: &Value) -> String {
    let rows = list(all).filter(|one| one["subtype"] == "NVMe").map(|one| {
        let hosts = match one["allow_any_host"].as_bool() {
            Some(true) => "any".into(),
            _ => list(&one["hosts"]).count().to_string(),
        };
        vec![
            text(&one["nqn"]),
            text(&one["serial_number"]),
            list(&one["namespaces"]).count().to_string(),
            hosts,
            joined(list(&one["listen_addresses"]).map(at)),
        ]
    });
    table(&["SUBSYSTEM", "SERIAL", "NAMESPACES", "HOSTS", "LISTENERS"], rows)
}

pub(super) fn namespaces(subsystems: &Value, bdevs: &Value) -> String {
    let mut rows = Vec::new();
    for subsystem in list(subsystems) {
        for one in list(&subsystem["namespaces"]) {
            let bdev = list(bdevs).find(|bdev| bdev["name"] == one["bdev_name"]).unwrap_or(&Value::Null);
            rows.push(vec![
                text(&subsystem["nqn"]),
                text(&one["nsid"]),
                bytes_of(bdev),
                text(&bdev["block_size"]),
                text(&one["anagrpid"]),
                text(&one["uuid"]),
                what(bdev),
            ]);
        }
    }
    table(&["SUBSYSTEM", "NSID", "SIZE", "BLOCK", "ANA GROUP", "UUID", "BDEV"], rows.into_iter())
}

fn bytes_of(bdev: &Value) -> String {
    let number = |key: &str| bdev[key].as_u64();
    let bytes =
        number("block_size").zip(number("num_blocks")).map(|(size, count)| size.saturating_mul(count));
    bytes.map_or_else(|| "-".into(), size)
}

/// A bdev by what it is made of.
fn what(bdev: &Value) -> String {
    match bdev["driver_specific"]["uring"]["filename"].as_str() {
        Some(path) => path.to_owned(),
        None => format!("{} ({})", text(&bdev["name"]), text(&bdev["product_name"])),
    }
}

pub(super) fn bdevs(all: &Value) -> String {
    let rows = list(all).map(|one| {
        let is_used = if one["claimed"] == true { "yes" } else { "no" };
        let limits = one["assigned_rate_limits"].as_object().into_iter().flatten();
        let limits = limits.filter(|(_, rate)| **rate != 0).map(|(name, rate)| format!("{name}={rate}"));
        vec![
            text(&one["name"]),
            text(&one["product_name"]),
            bytes_of(one),
            text(&one["block_size"]),
            is_used.into(),
            joined(limits),
        ]
    });
    table(&["BDEV", "KIND", "SIZE", "BLOCK", "SERVED", "LIMITS"], rows)
}

pub(super) fn hosts(subsystems: &Value) -> String {
    let subsystem = &subsystems[0];
    if subsystem["allow_any_host"] == true {
        return "any host is admitted\n".into();
    }
    let rows = list(&subsystem["hosts"]).map(|one| {
        let key = if one["dhchap_key"].is_null() { "no" } else { "yes" };
        vec![text(&one["nqn"]), key.into()]
    });
    table(&["HOST", "HAS TO AUTHENTICATE"], rows)
}

pub(super) fn listeners(all: &Value) -> String {
    let rows = list(all).map(|one| {
        let states = list(&one["ana_states"]).map(|state| {
            format!("{}={}", text(&state["ana_group"]), text(&state["ana_state"]).replace('_', "-"))
        });
        vec![at(&one["address"]), joined(states)]
    });
    table(&["LISTENER", "STATES OF ANA GROUPS"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_is_missing() {
        let all = json!([
            { "nqn": "discovery", "subtype": "Discovery" },
            {
                "nqn": "a", "subtype": "NVMe", "serial_number": "S", "allow_any_host": true,
                "namespaces": [{ "nsid": 1, "bdev_name": "M", "uuid": "u", "anagrpid": 1 }],
                "listen_addresses": [{ "traddr": "::1", "trsvcid": "4420" }],
            },
        ]);
        assert_eq!(
            subsystems(&all),
            "SUBSYSTEM  SERIAL  NAMESPACES  HOSTS  LISTENERS\na          S       1           any    [::1]:4420\n"
        );
        let bdevs_there = json!([{
            "name": "M", "product_name": "Malloc disk", "block_size": 512, "num_blocks": 8, "claimed": true,
            "assigned_rate_limits": { "rw_ios_per_sec": 5, "r_mbytes_per_sec": 0 },
        }]);
        assert!(
            namespaces(&all, &bdevs_there)
                .ends_with("a          1     4 KiB  512    1          u     M (Malloc disk)\n"),
            "{}",
            namespaces(&all, &bdevs_there)
        );
        assert!(bdevs(&bdevs_there).ends_with("yes     rw_ios_per_sec=5\n"));
    }
}
