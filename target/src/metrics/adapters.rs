//! What RDMA adapters count for themselves: the files which the kernel shows of each port.
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::text::label;

/// Where the kernel shows adapters.
const CLASS: &str = "/sys/class/infiniband";
/// The two kinds of counters a port has.
const KINDS: [&str; 2] = ["counters", "hw_counters"];

/// All of all adapters there are, whoever uses them; nothing on a machine without one.
pub(super) fn write(text: &mut String) {
    write_from(Path::new(CLASS), text);
}

fn write_from(class: &Path, text: &mut String) {
    let mut lines = String::new();
    for adapter in names(class) {
        let ports = class.join(&adapter).join("ports");
        for port in names(&ports) {
            for kind in KINDS {
                let place = ports.join(&port).join(kind);
                for counter in names(&place) {
                    let Some(value) = number(&place.join(&counter)) else { continue };
                    let _ = writeln!(
                        lines,
                        "ironside_adapter_counter{{adapter={},port={},kind=\"{kind}\",counter={}}} {value}",
                        label(&adapter),
                        label(&port),
                        label(&counter),
                    );
                }
            }
        }
    }
    if !lines.is_empty() {
        text.push_str(
            "# HELP ironside_adapter_counter What an RDMA adapter counts, by the kernel's names.\n",
        );
        text.push_str("# TYPE ironside_adapter_counter untyped\n");
        text.push_str(&lines);
    }
}

/// Some are not for everybody, and `lifespan` is no number of anything that happened.
fn number(path: &Path) -> Option<u64> {
    if path.file_name().is_some_and(|name| name == "lifespan") {
        return None;
    }
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// In an order that stays.
fn names(place: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_each_port_are_found_and_nothing_else() {
        let class = tempfile::tempdir().unwrap();
        let port = class.path().join("mlx5_0/ports/1");
        for (file, content) in [
            ("counters/port_rcv_data", "17\n"),
            ("counters/strange", "N/A (no PMA)\n"),
            ("hw_counters/np_cnp_sent", "5\n"),
            ("hw_counters/lifespan", "10\n"),
            ("state", "4: ACTIVE\n"),
        ] {
            let path = port.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let mut text = String::new();
        write_from(class.path(), &mut text);
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "ironside_adapter_counter{adapter=\"mlx5_0\",port=\"1\",kind=\"counters\",counter=\"port_rcv_data\"} 17",
                "ironside_adapter_counter{adapter=\"mlx5_0\",port=\"1\",kind=\"hw_counters\",counter=\"np_cnp_sent\"} 5",
            ]
        );
        let mut none = String::new();
        write_from(&class.path().join("absent"), &mut none);
        assert_eq!(none, "");
    }
}
