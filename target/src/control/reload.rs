//! What a new configuration changes while the old one is served: what is done, what has to wait for a restart, and
//! how it is told. It reads and opens; whoever serves takes the result over.
use std::fmt;

use ironside_common::nvme::Nqn;
use ironside_common::nvme::log_page::AnaState;
use ironside_common::verbs::Address;

use super::config::{Config, ConfigError};
use super::prepare::{PrepareError, Served};
use crate::catalog::{Catalog, Listener, Namespace, Subsystem};
use crate::limits::Resource;
use crate::throttle::Limit;

/// Why the old configuration goes on to be served.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
}

/// One difference between two versions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    SubsystemAdded(Nqn),
    SubsystemRemoved(Nqn),
    NamespaceAdded(Nqn, u32),
    NamespaceRemoved(Nqn, u32),
    /// Another one stands under its number.
    NamespaceReplaced(Nqn, u32),
    /// Its size in bytes, before and now.
    NamespaceResized(Nqn, u32, u64, u64),
    /// Its medium was opened anew, or takes writes no more, or again.
    NamespaceReopened(Nqn, u32),
    /// It is of this ANA group now.
    NamespaceRegrouped(Nqn, u32, u32),
    /// Other hosts see it.
    NamespaceShown(Nqn, u32),
    /// The state of a group at a listener.
    AccessChanged(Nqn, u32, Address, AnaState),
    /// All hosts together may ask of it what this says.
    NamespaceLimited(Nqn, u32, Limit),
    HostLimitsChanged(Nqn),
    HostsChanged(Nqn),
    KeysChanged(Nqn),
    ListenerAdded(Address),
    ListenerRemoved(Address),
    /// There may be so many from now on. Who is there stays.
    Limited(Resource, u64),
}

/// What is to be served according to `config`, where `served` is served now; and what stays as it is until a restart,
/// whatever `config` says of it.
///
/// # Errors
/// If it cannot be served. Nothing has changed then.
pub fn plan(served: &Served, config: Config) -> Result<(Served, Vec<String>), PrepareError> {
    let mut config = config;
    let kept = keep_fixed(served, &mut config);
    Ok((served.next(config)?, kept))
}

/// Sets back what is decided at the start, and names what was set back.
fn keep_fixed(served: &Served, config: &mut Config) -> Vec<String> {
    let now = &served.config;
    let mut kept = Vec::new();
    let mut keep = |is_changed: bool, name: &str| {
        if is_changed {
            kept.push(format!("`{name}`"));
        }
    };
    keep(config.reactors != now.reactors, "reactors");
    keep(config.queue_depth != now.queue_depth, "queue-depth");
    keep(config.crc != now.crc, "crc");
    keep(config.io_poll != now.io_poll, "io-poll");
    keep(config.poll != now.poll, "poll");
    keep(config.huge_pages != now.huge_pages, "huge-pages");
    keep(config.drain_timeout_s != now.drain_timeout_s, "drain-timeout");
    keep(config.state_directory != now.state_directory, "state-dir");
    keep(config.control != now.control, "control");
    keep(config.metrics != now.metrics, "metrics");
    let limits = config.limits;
    for resource in limits.differing(&now.limits).filter(|one| one.is_fixed()) {
        keep(true, &format!("limits.{resource}"));
        config.limits = config.limits.with(resource, now.limits.of(resource));
    }
    config.reactors = now.reactors;
    config.queue_depth = now.queue_depth;
    config.crc = now.crc;
    config.io_poll = now.io_poll;
    config.poll = now.poll;
    config.huge_pages = now.huge_pages;
    config.drain_timeout_s = now.drain_timeout_s;
    config.state_directory.clone_from(&now.state_directory);
    config.control.clone_from(&now.control);
    config.metrics = now.metrics;
    for subsystem in &mut config.subsystems {
        let Some(nqn) = subsystem.nqn else { continue };
        let Some(serial) = served.serial(&nqn) else { continue };
        if subsystem.serial.replace(serial).is_some_and(|said| said != serial) {
            kept.push(format!("`serial` of {nqn}"));
        }
        let cntlids = served.said(&nqn).and_then(|said| said.cntlids.clone());
        if subsystem.cntlids != cntlids {
            kept.push(format!("`cntlid-min` and `cntlid-max` of {nqn}"));
            subsystem.cntlids = cntlids;
        }
    }
    kept
}

/// What differs between two versions, in the order of their names.
#[must_use]
pub fn changes(old: &Catalog, new: &Catalog) -> Vec<Change> {
    let mut changes = Vec::new();
    for subsystem in old.subsystems() {
        match new.subsystem(subsystem.nqn()) {
            Some(next) => between(subsystem, next, &mut changes),
            None => changes.push(Change::SubsystemRemoved(*subsystem.nqn())),
        }
    }
    let added = new.subsystems().iter().map(Subsystem::nqn).filter(|nqn| old.subsystem(nqn).is_none());
    changes.extend(added.map(|nqn| Change::SubsystemAdded(*nqn)));
    let gone = |from: &Catalog, to: &Catalog| -> Vec<Address> {
        let there = |one: &Listener| to.listeners().iter().any(|other| one.is(other));
        from.listeners().iter().filter(|one| !there(one)).map(|one| one.address).collect()
    };
    changes.extend(gone(old, new).into_iter().map(Change::ListenerRemoved));
    changes.extend(gone(new, old).into_iter().map(Change::ListenerAdded));
    let limited = |resource| Change::Limited(resource, new.limits().of(resource));
    changes.extend(new.limits().differing(old.limits()).map(limited));
    changes
}

fn between(old: &Subsystem, new: &Subsystem, changes: &mut Vec<Change>) {
    let nqn = *old.nqn();
    for namespace in old.namespaces() {
        match new.namespace(namespace.nsid) {
            Some(next) => {
                changes.extend(of_namespace(nqn, namespace, next));
                let group = next.ana_group;
                let regrouped = Change::NamespaceRegrouped(nqn, namespace.nsid, group);
                changes.extend((group != namespace.ana_group).then_some(regrouped));
                let shown = Change::NamespaceShown(nqn, namespace.nsid);
                changes.extend((next.hosts != namespace.hosts).then_some(shown));
                let limited = Change::NamespaceLimited(nqn, namespace.nsid, next.limit);
                changes.extend((next.limit != namespace.limit).then_some(limited));
            }
            None => changes.push(Change::NamespaceRemoved(nqn, namespace.nsid)),
        }
    }
    let added = new.namespaces().iter().filter(|namespace| old.namespace(namespace.nsid).is_none());
    changes.extend(added.map(|namespace| Change::NamespaceAdded(nqn, namespace.nsid)));
    for group in new.ana_groups() {
        let states = new.listen().iter().map(|&at| (at, old.ana_state(group, at), new.ana_state(group, at)));
        let differing = states.filter(|(_, before, now)| before != now);
        changes.extend(differing.map(|(at, _, now)| Change::AccessChanged(nqn, group, at, now)));
    }
    if old.host_limits() != new.host_limits() {
        changes.push(Change::HostLimitsChanged(nqn));
    }
    if old.hosts() != new.hosts() {
        changes.push(Change::HostsChanged(nqn));
    }
    if old.keys() != new.keys() {
        changes.push(Change::KeysChanged(nqn));
    }
}

fn of_namespace(nqn: Nqn, old: &Namespace, new: &Namespace) -> Option<Change> {
    let bytes = |namespace: &Namespace| namespace.blocks << namespace.block_shift;
    if !old.is_same(new) {
        Some(Change::NamespaceReplaced(nqn, old.nsid))
    } else if old.blocks != new.blocks {
        Some(Change::NamespaceResized(nqn, old.nsid, bytes(old), bytes(new)))
    } else if old.medium.is(&new.medium) {
        None
    } else {
        Some(Change::NamespaceReopened(nqn, old.nsid))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SubsystemAdded(nqn) => write!(f, "+1 subsystem {nqn}"),
            Self::SubsystemRemoved(nqn) => write!(f, "-1 subsystem {nqn}"),
            Self::NamespaceAdded(nqn, nsid) => write!(f, "+1 namespace {nsid} of {nqn}"),
            Self::NamespaceRemoved(nqn, nsid) => write!(f, "-1 namespace {nsid} of {nqn}"),
            Self::NamespaceReplaced(nqn, nsid) => write!(f, "namespace {nsid} of {nqn} replaced by another"),
            Self::NamespaceResized(nqn, nsid, old, new) => {
                let verb = if old < new { "grown" } else { "shrunk" };
                write!(f, "namespace {nsid} of {nqn} {verb} from {old} to {new} bytes")
            }
            Self::NamespaceReopened(nqn, nsid) => write!(f, "namespace {nsid} of {nqn} opened anew"),
            Self::NamespaceRegrouped(nqn, nsid, group) => {
                write!(f, "namespace {nsid} of {nqn} is of ANA group {group}")
            }
            Self::NamespaceShown(nqn, nsid) => write!(f, "namespace {nsid} of {nqn} is for other hosts"),
            Self::AccessChanged(nqn, group, at, state) => {
                write!(f, "ANA group {group} of {nqn} {state} at {at}")
            }
            Self::HostsChanged(nqn) => write!(f, "other hosts admitted to {nqn}"),
            Self::NamespaceLimited(nqn, nsid, limit) => {
                write!(f, "namespace {nsid} of {nqn} limited: {limit}")
            }
            Self::HostLimitsChanged(nqn) => write!(f, "other limits for hosts of {nqn}"),
            Self::KeysChanged(nqn) => write!(f, "other keys for hosts of {nqn}"),
            Self::ListenerAdded(address) => write!(f, "+1 listener {address}"),
            Self::ListenerRemoved(address) => write!(f, "-1 listener {address}"),
            Self::Limited(resource, value) => {
                write!(f, "{resource} limited to {}", resource.written(*value))
            }
        }
    }
}

/// All of it on one line.
#[must_use]
pub fn summary(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "nothing has changed".into();
    }
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::control::prepare::prepare;

    const HOST: &str = "nqn.2014-08.org.example:h";

    struct Place(tempfile::TempDir);

    fn plan(served: &Served, config: Config) -> Result<Served, PrepareError> {
        super::plan(served, config).map(|(next, _)| next)
    }

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, size: u64) -> String {
            let path = self.0.path().join(name);
            File::options().create(true).append(true).open(&path).unwrap().set_len(size).unwrap();
            format!("{{ path = {path:?} }}")
        }

        fn config(&self, keys: &str, namespaces: &[&str]) -> Config {
            let text = format!(
                "state-dir = {:?}\n{keys}\n[[subsystem]]\nallow-any-host = true\nnamespace = [{}]\n",
                self.0.path(),
                namespaces.join(", ")
            );
            Config::parse(Path::new("target.toml"), &text).unwrap()
        }
    }

    /// Each change, without the name of the one subsystem.
    fn told(old: &Served, new: &Served) -> Vec<String> {
        let nqn = old.catalog.subsystems()[0].nqn().to_string();
        let changes = changes(&old.catalog, &new.catalog);
        changes.iter().map(|change| change.to_string().replace(&format!(" of {nqn}"), "")).collect()
    }

    fn namespace(served: &Served, nsid: u32) -> &Namespace {
        served.catalog.subsystems()[0].namespace(nsid).unwrap()
    }

    #[test]
    fn what_stays_keeps_medium_and_identity() {
        let place = Place::new();
        let (a, b, ram) = (place.file("a", 1 << 20), place.file("b", 1 << 20), "{ ram = 8192 }");
        let first = prepare(place.config("", &[&a, ram])).unwrap();
        let second = plan(&first, place.config("", &[&a, ram, &b])).unwrap();
        assert_eq!(told(&first, &second), ["+1 namespace 3"]);
        assert_eq!(second.catalog.version(), 2);
        for nsid in [1, 2] {
            assert!(namespace(&first, nsid).medium.is(&namespace(&second, nsid).medium));
            assert_eq!(namespace(&first, nsid).uuid, namespace(&second, nsid).uuid);
        }
        let third = plan(&second, place.config("", &[&b, ram, &a])).unwrap();
        assert_eq!(
            told(&second, &third),
            ["namespace 1 replaced by another", "namespace 3 replaced by another"]
        );
        assert!(namespace(&third, 3).medium.is(&namespace(&first, 1).medium), "opened once, locked once");
        let larger = plan(&third, place.config("", &[&b, "{ ram = 16384 }", &a])).unwrap();
        assert_eq!(told(&third, &larger), ["namespace 2 replaced by another"], "its content is gone");
        assert_eq!(summary(&changes(&larger.catalog, &larger.catalog)), "nothing has changed");
    }

    #[test]
    fn limits_change_for_whoever_comes_next_if_nothing_stands_on_them() {
        let place = Place::new();
        let config = |limits: &str| place.config(&format!("[limits]\n{limits}"), &["{ null = 8192 }"]);
        let first = prepare(config("buffers = \"16MiB\"\nconnections = 5")).unwrap();
        let second = plan(&first, config("buffers = \"32MiB\"\nconnections = 6")).unwrap();
        assert_eq!(told(&first, &second), ["connections limited to 6"]);
        assert_eq!(second.catalog.limits().of(Resource::Buffers), 16 << 20);
        let mut kept = config("buffers = \"32MiB\"\nrdma-reads = 1");
        assert_eq!(keep_fixed(&first, &mut kept), ["`limits.buffers`", "`limits.rdma-reads`"]);
    }

    #[test]
    fn a_medium_still_held_by_commands_is_taken_up_again() {
        let place = Place::new();
        let (a, b) = (place.file("a", 1 << 20), place.file("b", 1 << 20));
        let first = prepare(place.config("", &[&a, &b])).unwrap();
        // What a reactor holds until its last command has ended.
        let held = namespace(&first, 2).medium.clone();
        let second = plan(&first, place.config("", &[&a])).unwrap();
        drop(first);
        let third = plan(&second, place.config("", &[&a, &b])).unwrap();
        assert!(namespace(&third, 2).medium.is(&held), "a second lock would be refused");
        drop((second, third, held));
        let file = File::open(place.0.path().join("b")).unwrap();
        assert!(file.try_lock().is_ok(), "nobody serves it any more");
    }

    #[test]
    fn two_names_of_one_file_are_one_file() {
        let place = Place::new();
        let a = place.file("a", 1 << 20);
        let first = prepare(place.config("", &[&a])).unwrap();
        std::fs::hard_link(place.0.path().join("a"), place.0.path().join("b")).unwrap();
        let twice = plan(&first, place.config("", &[&a, &place.file("b", 1 << 20)])).unwrap_err();
        assert!(matches!(twice, PrepareError::SameMedium(_)), "{twice}");
        let moved = plan(&first, place.config("", &[&place.file("b", 1 << 20)])).unwrap();
        assert!(namespace(&moved, 1).medium.is(&namespace(&first, 1).medium), "its only name is right");
    }

    #[test]
    fn what_is_served_outlives_the_state_directory() {
        let place = Place::new();
        let a = place.file("a", 1 << 20);
        let first = prepare(place.config("", &[&a, "{ null = 8192 }"])).unwrap();
        std::fs::remove_file(place.0.path().join("target.identities")).unwrap();
        let second = plan(&first, place.config("", &[&a, "{ null = 8192 }"])).unwrap();
        assert_eq!(told(&first, &second), [""; 0], "hosts would lose what they use");
    }

    #[test]
    fn another_file_under_the_same_path_is_another_medium() {
        let place = Place::new();
        let a = place.file("a", 1 << 20);
        let first = prepare(place.config("", &[&a])).unwrap();
        std::fs::rename(place.0.path().join("a"), place.0.path().join("old")).unwrap();
        place.file("a", 2 << 20);
        let second = plan(&first, place.config("", &[&a])).unwrap();
        assert!(!namespace(&first, 1).medium.is(&namespace(&second, 1).medium));
        assert_eq!(told(&first, &second), ["namespace 1 grown from 1048576 to 2097152 bytes"]);
    }

    #[test]
    fn block_size_and_read_only_change_without_a_second_lock() {
        let place = Place::new();
        let a = place.file("a", 1 << 20);
        let keys = |keys: &str| a.replace(" }", &format!(", {keys} }}"));
        let first = prepare(place.config("", &[&keys("lba = 4096")])).unwrap();
        let second = plan(&first, place.config("", &[&keys("lba = 4096, read-only = true")])).unwrap();
        assert_eq!(told(&first, &second), ["namespace 1 opened anew"]);
        assert!(namespace(&second, 1).read_only);
        drop(first);
        let third = plan(&second, place.config("", &[&keys("lba = 4096")])).unwrap();
        assert!(!namespace(&third, 1).read_only);
        drop((second, third));
        let read_only = prepare(place.config("", &[&keys("lba = 4096, read-only = true")])).unwrap();
        let writable = plan(&read_only, place.config("", &[&keys("lba = 4096")])).unwrap();
        assert!(
            !namespace(&writable, 1).read_only,
            "the descriptor was of no use, nor was its lock in the way"
        );
    }

    #[test]
    fn other_hosts_of_a_namespace_are_a_change_of_it_alone() {
        let place = Place::new();
        let (a, b) = (place.file("a", 1 << 20), place.file("b", 1 << 20));
        let for_one = b.replace(" }", &format!(", allow-hosts = [{HOST:?}] }}"));
        let first = prepare(place.config("", &[&a, &b])).unwrap();
        let second = plan(&first, place.config("", &[&a, &for_one])).unwrap();
        assert_eq!(told(&first, &second), ["namespace 2 is for other hosts"]);
        let subsystem = &second.catalog.subsystems()[0];
        let seen_by = |host: &str| subsystem.namespaces_for(&host.parse().unwrap()).count();
        assert_eq!([HOST, "nqn.2014-08.org.example:other"].map(seen_by), [2, 1]);
        let none = b.replace(" }", ", allow-hosts = [] }");
        let text = format!("[[subsystem]]\nallow-any-host = true\nnamespace = [{none}]\n");
        let error = Config::parse(Path::new("target.toml"), &text).unwrap_err();
        assert!(error.to_string().contains("the list is empty"), "{error}");
    }

    #[test]
    fn a_key_is_read_anew_and_a_bad_one_changes_nothing() {
        let place = Place::new();
        let file = place.0.path().join("host.key");
        let write = |text: &str, mode| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let config = |change: &str| {
            let text = format!(
                "state-dir = {:?}\n[[subsystem]]\nnqn = \"nqn.2014-08.org.example:s\"\nhost = [{{ nqn = {HOST:?}, \
                 key-file = {file:?}, on-key-change = {change:?} }}]\nnamespace = [{{ null = 8192 }}]\n",
                place.0.path()
            );
            Config::parse(Path::new("target.toml"), &text).unwrap()
        };
        let key =
            |served: &Served| served.catalog.subsystems()[0].key(&HOST.parse().unwrap()).unwrap().clone();
        write("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n", 0o600);
        let first = prepare(config("keep")).unwrap();
        assert!(
            first.catalog.subsystems()[0].allows(&HOST.parse().unwrap()),
            "whoever has a key is admitted"
        );
        assert_eq!(told(&first, &plan(&first, config("keep")).unwrap()), [""; 0]);
        write("DHHC-1:00://79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eAsgEB3:\n", 0o600);
        let second = plan(&first, config("disconnect")).unwrap();
        assert_ne!(key(&first).policy, key(&second).policy);
        assert!(key(&second).disconnect_on_change && !key(&first).disconnect_on_change);
        assert_eq!(told(&first, &second), ["other keys for hosts"]);
        for (text, mode, said) in [
            ("DHHC-1:00:AAAA:", 0o600, "32, 48 or 64 bytes"),
            ("", 0o600, "DHHC-1"),
            ("DHHC-1:", 0o640, "chmod 600"),
        ] {
            write(text, mode);
            let refused = plan(&second, config("keep")).unwrap_err().to_string();
            assert!(refused.contains(said) && refused.contains("host.key"), "{refused}");
        }
    }

    #[test]
    fn limits_change_and_nothing_else() {
        let place = Place::new();
        let limited = |limit: &str| place.config("", &[&format!("{{ null = 8192{limit} }}")]);
        let first = prepare(limited("")).unwrap();
        let second = plan(&first, limited(", limit = { iops = 5, burst = \"1s\" }")).unwrap();
        let said = "namespace 1 limited: 5 commands/s, burst 1000 ms";
        assert_eq!(told(&first, &second), [said]);
        assert!(namespace(&first, 1).looks_like(namespace(&second, 1)), "hosts see nothing of it");
        assert_eq!(told(&second, &plan(&second, limited("")).unwrap()), ["namespace 1 limited: no limit"]);
        let mut config = limited("");
        config.subsystems[0].host_limits.each.iops = std::num::NonZeroU64::new(3);
        assert_eq!(told(&first, &plan(&first, config).unwrap()), ["other limits for hosts"]);
    }

    #[test]
    fn what_takes_a_restart_stays_as_it_is() {
        let place = Place::new();
        let first = prepare(place.config("reactors = 1\ncrc = \"off\"", &["{ null = 8192 }"])).unwrap();
        let mut config = place.config("reactors = 2\nlisten = [\"127.0.0.1:4421\"]", &["{ null = 8192 }"]);
        assert_eq!(keep_fixed(&first, &mut config), ["`reactors`", "`crc`"]);
        assert_eq!((config.reactors, config.crc), (first.config.reactors, first.config.crc));
        let second = plan(&first, config).unwrap();
        assert_eq!(told(&first, &second), ["-1 listener 127.0.0.1:4420", "+1 listener 127.0.0.1:4421"]);
        let again = prepare(second.config).unwrap();
        assert_eq!(again.catalog.subsystems()[0].nqn(), first.catalog.subsystems()[0].nqn(), "for good");
    }

    #[test]
    fn ways_end_and_come_back_and_a_part_of_a_subsystem_stays_what_it_is() {
        let place = Place::new();
        let with = |more: &str, group: u32| {
            let null = format!("namespace = [{{ null = 8192, ana-group = {group} }}]");
            let mut config = place.config("", &["{ null = 8192 }"]);
            let text = format!(
                "state-dir = {:?}\n[[subsystem]]\nnqn = \"nqn.2014-08.org.example:a\"\nallow-any-host = true\n{null}\n{more}",
                place.0.path()
            );
            config.subsystems = Config::parse(Path::new("target.toml"), &text).unwrap().subsystems;
            config
        };
        let first = prepare(with("", 1)).unwrap();
        let second = plan(&first, with("ana = [{ state = \"inaccessible\" }]", 1)).unwrap();
        assert_eq!(told(&first, &second), ["ANA group 1 inaccessible at 127.0.0.1:4420"]);
        let third = plan(&second, with("ana = [{ group = 2, state = \"change\" }]", 2)).unwrap();
        assert_eq!(
            told(&second, &third),
            ["namespace 1 is of ANA group 2", "ANA group 2 change at 127.0.0.1:4420"]
        );
        let mut shared = with("", 2);
        shared.subsystems[0].cntlids = Some(1..=256);
        assert_eq!(keep_fixed(&third, &mut shared).len(), 1);
        assert_eq!(shared.subsystems[0].cntlids, None);
    }

    #[test]
    fn what_cannot_be_opened_changes_nothing() {
        let place = Place::new();
        let a = place.file("a", 1 << 20);
        let first = prepare(place.config("", &[&a])).unwrap();
        let missing = plan(&first, place.config("", &[&a, "{ path = \"/nowhere\" }"])).unwrap_err();
        assert!(missing.to_string().contains("/nowhere is missing"), "{missing}");
        let file = File::open(place.0.path().join("a")).unwrap();
        assert!(file.try_lock().is_err(), "it is still served, and locked");
    }

    #[test]
    fn a_size_is_followed_and_none_is_no_size() {
        let place = Place::new();
        let a = place.file("a", 1 << 20).replace(" }", ", lba = 512 }");
        let served = prepare(place.config("", &[&a])).unwrap();
        let sized = |size| {
            place.file("a", size);
            namespace(&served, 1).medium.refresh().unwrap();
            served.catalog.resized().map(|catalog| catalog.subsystems()[0].namespaces()[0].blocks)
        };
        assert_eq!(sized(1 << 20), None);
        assert_eq!(sized((3 << 20) + 17), Some(3 << 11));
        assert_eq!(sized(512), Some(1));
        assert_eq!(sized(0), None, "its commands fail; a namespace of no size there is not");
    }
}
