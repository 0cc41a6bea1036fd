//! A configuration as the text of a file, for one that did not come from such a file.
use ironside_common::memory::HugePages;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, Value, value};

use super::config::{Backing, Bdev, Config, Crc, HostKey, Hosts, IoPoll, Listen, Namespace, Subsystem};
use super::draft::{limit_entries, size};
use crate::limits::{Limits, Resource};

/// What `config` says, all of it, so that reading it gives the same.
pub fn render(config: &Config) -> String {
    let mut document = DocumentMut::new();
    let root = document.as_table_mut();
    root["listen"] = value(listeners(&config.listen));
    root["provider"] = value(config.provider.to_string());
    if let Some(reactors) = config.reactors {
        root["reactors"] = value(i64::from(reactors));
    }
    root["queue-depth"] = value(i64::from(config.queue_depth));
    let crc = match config.crc {
        Crc::On => "on",
        Crc::Off => "off",
        Crc::Peer => "peer",
    };
    root["crc"] = value(crc);
    root["io-poll"] = value(if config.io_poll == IoPoll::Auto { "auto" } else { "off" });
    root["poll"] = value(config.poll.to_string());
    let pages = match config.huge_pages {
        HugePages::Off => "off",
        HugePages::Auto => "auto",
        HugePages::TwoMebibytes => "2MiB",
        HugePages::OneGibibyte => "1GiB",
    };
    root["huge-pages"] = value(pages);
    root["drain-timeout"] = value(i64::from(config.drain_timeout_s));
    let paths = [("state-dir", &config.state_directory), ("control", &config.control)];
    for (key, path) in paths {
        if let Some(path) = path {
            root[key] = value(path.display().to_string());
        }
    }
    if let Some(metrics) = config.metrics {
        root["metrics"] = value(metrics.to_string());
    }
    limits(root, &config.limits);
    tables(root, "bdev", config.bdevs.iter().map(bdev));
    tables(root, "subsystem", config.subsystems.iter().map(subsystem));
    document.to_string()
}

fn limits(root: &mut Table, limits: &Limits) {
    let mut table = Table::new();
    for resource in limits.differing(&Limits::default()) {
        let number = limits.of(resource);
        table[resource.key()] = Item::Value(match Resource::is_bytes(resource) {
            true => size(number),
            false => i64::try_from(number).unwrap_or(i64::MAX).into(),
        });
    }
    if !table.is_empty() {
        root["limits"] = Item::Table(table);
    }
}

fn tables(parent: &mut Table, key: &str, tables: impl Iterator<Item = Table>) {
    let all: ArrayOfTables = tables.collect();
    if !all.is_empty() {
        parent[key] = Item::ArrayOfTables(all);
    }
}

fn listeners(listen: &[Listen]) -> Array {
    listen.iter().map(ToString::to_string).collect()
}

fn texts<T: ToString>(names: &[T]) -> Array {
    names.iter().map(ToString::to_string).collect()
}

fn bdev(bdev: &Bdev) -> Table {
    let mut table = Table::new();
    table["name"] = value(bdev.name.as_str());
    describe(&mut table, &bdev.as_namespace(1));
    table
}

/// What a namespace or a bdev is made of.
fn describe(table: &mut Table, namespace: &Namespace) {
    let (key, text): (_, Value) = match &namespace.backing {
        Backing::File { path, .. } => ("path", path.display().to_string().into()),
        Backing::Ram { size: bytes } => ("ram", size(*bytes)),
        Backing::Null { size: bytes } => ("null", size(*bytes)),
    };
    table[key] = value(text);
    if let Backing::File { size: Some(bytes), .. } = namespace.backing {
        table["size"] = value(size(bytes));
    }
    if let Some(block) = namespace.block_size {
        table["lba"] = value(i64::from(block.bytes()));
    }
    if namespace.read_only {
        table["read-only"] = value(true);
    }
    if namespace.limit.is_any() {
        table["limit"] = value(limit_entries(&namespace.limit));
    }
    if let Some(uuid) = namespace.uuid {
        table["uuid"] = value(uuid.to_string());
    }
}

fn namespace(namespace: &Namespace) -> Table {
    let mut table = Table::new();
    table["nsid"] = value(i64::from(namespace.nsid));
    match &namespace.bdev {
        Some(name) => table["bdev"] = value(name.as_str()),
        None => describe(&mut table, namespace),
    }
    if let Some(uuid) = namespace.uuid {
        table["uuid"] = value(uuid.to_string());
    }
    if let Some(hosts) = &namespace.hosts {
        table["allow-hosts"] = value(texts(hosts));
    }
    if namespace.ana_group != 1 {
        table["ana-group"] = value(i64::from(namespace.ana_group));
    }
    table
}

fn subsystem(subsystem: &Subsystem) -> Table {
    let mut table = Table::new();
    if let Some(nqn) = subsystem.nqn {
        table["nqn"] = value(nqn.as_str());
    }
    if let Some(serial) = subsystem.serial {
        table["serial"] = value(serial.as_str());
    }
    match &subsystem.hosts {
        Hosts::ThisMachine => {}
        Hosts::Listed(hosts) => table["allow-hosts"] = value(texts(hosts)),
        Hosts::Any => table["allow-any-host"] = value(true),
    }
    if let Some(listen) = &subsystem.listen {
        table["listen"] = value(listeners(listen));
    }
    if let Some(cntlids) = &subsystem.cntlids {
        table["cntlid-min"] = value(i64::from(*cntlids.start()));
        table["cntlid-max"] = value(i64::from(*cntlids.end()));
    }
    if subsystem.host_limits.each.is_any() {
        table["host-limit"] = value(limit_entries(&subsystem.host_limits.each));
    }
    tables(&mut table, "host", hosts(subsystem));
    let access = subsystem.access.iter().map(|one| {
        let mut table = Table::new();
        if let Some(listen) = one.listen {
            table["listen"] = value(listen.to_string());
        }
        table["group"] = value(i64::from(one.group));
        table["state"] = value(one.state.to_string().replace(' ', "-"));
        table
    });
    tables(&mut table, "ana", access);
    tables(&mut table, "namespace", subsystem.namespaces.iter().map(namespace));
    table
}

/// Hosts with a key, and those with a limit; of one with both, one table.
fn hosts(subsystem: &Subsystem) -> impl Iterator<Item = Table> {
    let limits = &subsystem.host_limits.named;
    let with_key = subsystem.keys.iter().map(move |key| {
        let limit = limits.iter().find(|(nqn, _)| *nqn == key.nqn).map(|(_, limit)| limit);
        let mut table = host_key(key);
        if let Some(limit) = limit {
            table["limit"] = value(limit_entries(limit));
        }
        table
    });
    let has_key = |(nqn, _): &&(Option<_>, _)| subsystem.keys.iter().any(|key| key.nqn == *nqn);
    let limited = limits.iter().filter(move |one| !has_key(one)).map(|(nqn, limit)| {
        let mut table = Table::new();
        if let Some(nqn) = nqn {
            table["nqn"] = value(nqn.as_str());
        }
        table["limit"] = value(limit_entries(limit));
        table
    });
    with_key.chain(limited)
}

fn host_key(key: &HostKey) -> Table {
    let mut table = Table::new();
    if let Some(nqn) = key.nqn {
        table["nqn"] = value(nqn.as_str());
    }
    table["key-file"] = value(key.key_file.display().to_string());
    if let Some(file) = &key.controller_key_file {
        table["controller-key-file"] = value(file.display().to_string());
    }
    table["hashes"] = value(texts(&key.hashes));
    table["groups"] = value(texts(&key.groups));
    table["on-key-change"] = value(if key.disconnect_on_change { "disconnect" } else { "keep" });
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_rendered_reads_as_what_it_was() {
        let host = "nqn.2014-08.org.example:h";
        let text = format!(
            r#"
            listen = ["[::1]:4421,provider=iwarp"]
            provider = "ibv"
            reactors = 3
            crc = "peer"
            io-poll = "off"
            poll = "never"
            huge-pages = "2MiB"
            state-dir = "/x"
            control = "/run/c"
            metrics = "[::1]"
            limits = {{ buffers = "64MiB", connections = 7 }}
            bdev = [{{ name = "M", ram = "1MiB", lba = 512, limit = {{ iops = 5, burst = "2s" }} }}]
            [[subsystem]]
            nqn = "nqn.2014-08.org.example:a"
            serial = "S"
            allow-hosts = [{host:?}]
            cntlid-min = 5
            host-limit = {{ bandwidth = "1MiB" }}
            host = [{{ nqn = {host:?}, key-file = "/k", hashes = ["sha384"], groups = ["ffdhe2048"], limit = {{ iops = 9 }} }}, {{ limit = {{ iops = 8 }} }}]
            ana = [{{ state = "persistent-loss", group = 2 }}]
            namespace = [{{ path = "/d", size = 8192, read-only = true, ana-group = 2, uuid = "0b2f3c52-5f0e-4c7e-9a53-6d3c1f3f2b10", allow-hosts = [{host:?}] }}]
            [[subsystem]]
            nqn = "nqn.2014-08.org.example:b"
            allow-any-host = true
            listen = []
            namespace = [{{ nsid = 7, bdev = "M" }}, {{ null = "3KiB", lba = 512 }}]
            "#
        );
        let text = text.replace("3KiB", "12KiB");
        let config = Config::parse(Path::new("a.toml"), &text).unwrap();
        let again = Config::parse(Path::new("b.toml"), &render(&config)).unwrap();
        assert_eq!(again, config, "{}", render(&config));
    }
}
