//! What interface, adapter and TCP count of losses and congestion: before the target was asked, and after.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Finding;
use super::system::Machine;

/// What a name of a counter contains which tells of packets lost or sent again.
const LOSS: [&str; 12] = [
    "drop", "discard", "_err", "error", "missed", "fifo", "out_of", "retry", "retrans", "timeout", "rnr",
    "seq",
];
/// What a name of a counter contains which tells of congestion.
const CONGESTION: [&str; 6] = ["pause", "ecn", "cnp", "inceptkts", "xmit_wait", "pfc"];
/// Counters named in a finding; there may be hundreds, one for each queue and priority.
const NAMED: usize = 6;

/// Counters by name, those of losses and those of congestion.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Counters {
    losses: BTreeMap<String, u64>,
    congestion: BTreeMap<String, u64>,
}

impl Counters {
    /// `adapter` is where the kernel describes the port of an adapter.
    pub(super) fn read(machine: &Machine, interface: Option<&str>, adapter: Option<PathBuf>) -> Self {
        let mut counters = Self::default();
        if let Some(interface) = interface {
            counters.add_files(interface, &machine.interface(interface).join("statistics"));
            counters.add_ethtool(interface);
        }
        if let Some(port) = adapter {
            counters.add_files("port", &port.join("counters"));
            counters.add_files("port", &port.join("hw_counters"));
        }
        for (file, protocol, names) in
            [("snmp", "Tcp:", &["RetransSegs"][..]), ("netstat", "IpExt:", &["InCEPkts"][..])]
        {
            let text = fs::read_to_string(machine.proc.join("net").join(file)).unwrap_or_default();
            counters.add_protocol(&text, protocol, names);
        }
        counters
    }

    fn add(&mut self, owner: &str, name: &str, value: u64) {
        let says = |words: &[&str]| words.iter().any(|word| name.to_ascii_lowercase().contains(word));
        let whole = format!("{owner} {name}");
        if says(&CONGESTION) || name == "InCEPkts" {
            self.congestion.insert(whole, value);
        } else if says(&LOSS) {
            self.losses.insert(whole, value);
        }
    }

    fn add_files(&mut self, owner: &str, directory: &Path) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let value = fs::read_to_string(entry.path()).ok().and_then(|text| text.trim().parse().ok());
            if let Some(value) = value {
                self.add(owner, &entry.file_name().to_string_lossy(), value);
            }
        }
    }

    /// Pauses are counted by drivers only, which answer ethtool, where that is installed.
    fn add_ethtool(&mut self, interface: &str) {
        let Ok(output) = Command::new("ethtool").args(["-S", interface]).output() else { return };
        self.add_driver_s(interface, &String::from_utf8_lossy(&output.stdout));
    }

    fn add_driver_s(&mut self, interface: &str, said: &str) {
        let rows = said.lines().filter_map(|row| row.trim().split_once(": "));
        for (name, value) in rows.filter_map(|(name, value)| Some((name, value.trim().parse().ok()?))) {
            self.add(interface, name, value);
        }
    }

    /// Two lines each: names, then numbers, both behind the protocol's name.
    fn add_protocol(&mut self, text: &str, protocol: &str, wanted: &[&str]) {
        let mut lines = text.lines().filter(|line| line.starts_with(protocol));
        let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return };
        let rows = names.split_whitespace().zip(values.split_whitespace()).skip(1);
        for (name, value) in rows.filter(|(name, _)| wanted.contains(name)) {
            if let Ok(value) = value.parse() {
                self.add(protocol.trim_end_matches(':'), name, value);
            }
        }
    }
}

pub(super) fn check(before: &Counters, after: &Counters, adapter: bool) -> [Finding; 2] {
    let losses = if adapter {
        "an adapter sends all again after a loss: make the way lossless (PFC) or have it mark before it drops (ECN), see docs/adapters.md; \
         check cables and transceivers"
    } else {
        "look where on the way packets are lost: cables, a full switch, a receive ring that is too small (ethtool -g)"
    };
    let congestion = "something on the way is full: fewer hosts at once, a faster link, or other priorities; where only pauses \
                      grow, DCQCN (ECN) is to act before PFC does, see docs/adapters.md";
    [
        judge("losses", &before.losses, &after.losses, losses),
        judge("congestion", &before.congestion, &after.congestion, congestion),
    ]
}

fn judge(
    check: &'static str,
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
    remedy: &str,
) -> Finding {
    let grown = after.iter().filter_map(|(name, value)| {
        let more = value.checked_sub(*before.get(name)?)?;
        (more > 0).then(|| format!("{name} by {more}"))
    });
    let grown: Vec<_> = grown.collect();
    if !grown.is_empty() {
        return Finding::warn(check, format!("grew meanwhile: {}", some(&grown)), remedy);
    }
    let counted: Vec<_> = after
        .iter()
        .filter(|(_, value)| **value > 0)
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    match (after.is_empty(), counted.is_empty()) {
        (true, _) => Finding::ok(check, "nobody counts them here"),
        (_, true) => Finding::ok(check, "none"),
        _ => Finding::ok(check, format!("none meanwhile; since the start: {}", some(&counted))),
    }
}

fn some(items: &[String]) -> String {
    let named = items[..items.len().min(NAMED)].join(", ");
    let more = items.len().saturating_sub(NAMED);
    if more == 0 { named } else { format!("{named}, and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn counters_of_all_kinds_are_read_and_sorted() {
        let place = tempfile::tempdir().unwrap();
        let machine = Machine { sys: place.path().join("sys"), proc: place.path().join("proc") };
        let statistics = machine.interface("doctor0").join("statistics");
        let port = place.path().join("port");
        for directory in [&statistics, &port.join("hw_counters"), &machine.proc.join("net")] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(statistics.join("rx_dropped"), "3\n").unwrap();
        fs::write(statistics.join("rx_bytes"), "9\n").unwrap();
        fs::write(port.join("hw_counters/np_cnp_sent"), "4\n").unwrap();
        fs::write(port.join("hw_counters/packet_seq_err"), "5\n").unwrap();
        fs::write(port.join("hw_counters/ack_deferred"), "6\n").unwrap();
        fs::write(machine.proc.join("net/snmp"), "Ip: a\nIp: 1\nTcp: OutSegs RetransSegs\nTcp: 10 6\n")
            .unwrap();
        fs::write(machine.proc.join("net/netstat"), "IpExt: InCEPkts x\nIpExt: 7 8\n").unwrap();
        let mut counters = Counters::read(&machine, Some("doctor0"), Some(port));
        counters.add_driver_s("doctor0", "NIC statistics:\n     rx_pause: 11\n     rx_packets: 12\n");
        let pairs = |map: &BTreeMap<String, u64>| -> Vec<_> {
            map.iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        assert_eq!(
            pairs(&counters.losses),
            ["Tcp RetransSegs=6", "doctor0 rx_dropped=3", "port packet_seq_err=5"]
        );
        assert_eq!(
            pairs(&counters.congestion),
            ["IpExt InCEPkts=7", "doctor0 rx_pause=11", "port np_cnp_sent=4"]
        );

        let mut later = counters.clone();
        let [losses, congestion] = check(&counters, &later, false);
        assert_eq!((losses.verdict, congestion.verdict), (Verdict::Ok, Verdict::Ok));
        assert!(losses.found.contains("since the start: Tcp RetransSegs 6"), "{losses:?}");
        later.add("doctor0", "rx_dropped", 5);
        let [losses, _] = check(&counters, &later, false);
        assert_eq!(
            (losses.verdict, losses.found.as_str()),
            (Verdict::Warn, "grew meanwhile: doctor0 rx_dropped by 2")
        );
        let nothing = Counters::default();
        assert_eq!(check(&nothing, &nothing, true)[0].found, "nobody counts them here");
    }
}
