//! `ironside-target devices`: which RDMA adapters this machine has, or why none.
use std::fmt::Write;

use clap::ValueEnum;
use ironside_common::memory::{self, HugePagesThere};
use serde::Serialize;

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Format {
    #[default]
    Normal,
    Json,
}

/// What there is, as scripts read it. `why_none` stands where no adapter does.
#[derive(Debug, Default, Serialize)]
struct Report {
    devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_none: Option<String>,
    huge_pages: HugePages,
}

/// Huge pages of the machine. None are told of where nobody looked.
#[derive(Debug, Default, Serialize)]
struct HugePages {
    set_aside: Vec<SetAside>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transparent: Option<String>,
    #[serde(skip)]
    in_words: Option<String>,
}

#[derive(Debug, Serialize)]
struct SetAside {
    bytes: u64,
    pages: u64,
    free: u64,
}

impl From<HugePagesThere> for HugePages {
    fn from(there: HugePagesThere) -> Self {
        let in_words = Some(there.to_string());
        let one = |one: memory::SetAside| SetAside { bytes: one.bytes, pages: one.pages, free: one.free };
        let set_aside = there.set_aside.into_iter().map(one).collect();
        Self { set_aside, transparent: there.transparent, in_words }
    }
}

#[derive(Debug, Serialize)]
struct Device {
    name: String,
    node_guid: String,
    transport: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    ports: Vec<Port>,
}

#[derive(Debug, Serialize)]
struct Limits {
    queue_pairs: i32,
    work_requests: i32,
    scatter_entries: i32,
    completion_queue_entries: i32,
    memory_regions: i32,
    memory_region_bytes: u64,
    memory_windows: i32,
    reads_in: i32,
    reads_out: i32,
    shared_receive_queues: i32,
}

#[derive(Debug, Serialize)]
struct Port {
    port: u8,
    state: String,
    link_layer: String,
    active_mtu_bytes: u32,
    gids: Vec<Gid>,
}

#[derive(Debug, Serialize)]
struct Gid {
    index: u32,
    gid: String,
    #[serde(rename = "type")]
    kind: String,
    interface: String,
}

/// All adapters and what they can do, or why there is none and what to do about it.
#[must_use]
pub fn report(format: Format) -> String {
    let report = Report { huge_pages: HugePagesThere::look().into(), ..look() };
    match format {
        Format::Normal => report.in_words(),
        Format::Json => {
            serde_json::to_string_pretty(&report).expect("names and numbers are always JSON") + "\n"
        }
    }
}

#[cfg(not(feature = "ibv"))]
fn look() -> Report {
    let why = "this program was built without RDMA adapters: build it with the feature `ibv`";
    Report { why_none: Some(why.into()), ..Report::default() }
}

#[cfg(feature = "ibv")]
fn look() -> Report {
    match ironside_common::provider::ibv::devices() {
        Ok(devices) => {
            Report { devices: devices.into_iter().map(Device::from).collect(), ..Report::default() }
        }
        Err(absence) => Report { why_none: Some(absence.to_string()), ..Report::default() },
    }
}

#[cfg(feature = "ibv")]
mod seen {
    use ironside_common::provider::ibv;

    use super::{Device, Gid, Limits, Port};

    impl From<ibv::Device> for Device {
        fn from(seen: ibv::Device) -> Self {
            let (limits, ports, error) = match seen.details {
                Ok((limits, ports)) => {
                    (Some(limits.into()), ports.into_iter().map(Port::from).collect(), None)
                }
                Err(error) => (None, Vec::new(), Some(error)),
            };
            let (name, node_guid, transport) = (seen.name, seen.node_guid, seen.transport.into());
            Self { name, node_guid, transport, error, limits, ports }
        }
    }

    impl From<ibv::DeviceLimits> for Limits {
        fn from(seen: ibv::DeviceLimits) -> Self {
            Self {
                queue_pairs: seen.queue_pairs,
                work_requests: seen.work_requests,
                scatter_entries: seen.scatter_entries,
                completion_queue_entries: seen.completion_queue_entries,
                memory_regions: seen.memory_regions,
                memory_region_bytes: seen.memory_region_size,
                memory_windows: seen.memory_windows,
                reads_in: seen.reads_in,
                reads_out: seen.reads_out,
                shared_receive_queues: seen.shared_receive_queues,
            }
        }
    }

    impl From<ibv::Port> for Port {
        fn from(seen: ibv::Port) -> Self {
            Self {
                port: seen.number,
                state: seen.state.into(),
                link_layer: seen.link_layer.into(),
                active_mtu_bytes: seen.active_mtu,
                gids: seen.gids.into_iter().map(Gid::from).collect(),
            }
        }
    }

    impl From<ibv::Gid> for Gid {
        fn from(seen: ibv::Gid) -> Self {
            let (index, gid) = (seen.index, seen.address.to_string());
            Self { index, gid, kind: seen.kind, interface: seen.interface }
        }
    }
}

impl Report {
    fn in_words(&self) -> String {
        let mut text = String::new();
        if let Some(why) = &self.why_none {
            text = format!("no RDMA adapter: {why}\n");
        }
        for device in &self.devices {
            // Writing to a string cannot fail.
            let _ = device.write_to(&mut text);
        }
        if let Some(there) = &self.huge_pages.in_words {
            // As above.
            let _ = writeln!(text, "huge pages: {there}");
        }
        text
    }
}

impl Device {
    fn write_to(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "{}: {}, node GUID {}", self.name, self.transport, self.node_guid)?;
        if let Some(error) = &self.error {
            writeln!(text, "  {error}")?;
        }
        if let Some(limits) = &self.limits {
            writeln!(
                text,
                "  limits: {} queue pairs of {} work requests with {} pieces, {} completion queue entries, {} shared receive queues",
                limits.queue_pairs,
                limits.work_requests,
                limits.scatter_entries,
                limits.completion_queue_entries,
                limits.shared_receive_queues,
            )?;
            writeln!(
                text,
                "  RDMA Reads of a queue pair: {} in, {} out; memory: {} regions of up to {} bytes, {} windows",
                limits.reads_in,
                limits.reads_out,
                limits.memory_regions,
                limits.memory_region_bytes,
                limits.memory_windows,
            )?;
        }
        for port in &self.ports {
            writeln!(
                text,
                "  port {}: {}, {}, MTU {}",
                port.port, port.state, port.link_layer, port.active_mtu_bytes
            )?;
            for gid in &port.gids {
                writeln!(text, "    GID {}: {} {} {}", gid.index, gid.gid, gid.kind, gid.interface)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_and_the_lack_of_one_are_told_in_words_and_as_json() {
        let gid =
            Gid { index: 1, gid: "::ffff:10.9.0.1".into(), kind: "RoCE v2".into(), interface: "d0".into() };
        let port = Port {
            port: 1,
            state: "active".into(),
            link_layer: "Ethernet".into(),
            active_mtu_bytes: 4096,
            gids: vec![gid],
        };
        let device = Device {
            name: "rxe0".into(),
            node_guid: "0102:0304:0506:0708".into(),
            transport: "InfiniBand".into(),
            error: None,
            limits: None,
            ports: vec![port],
        };
        let report = Report { devices: vec![device], ..Report::default() };
        let words = "rxe0: InfiniBand, node GUID 0102:0304:0506:0708\n  port 1: active, Ethernet, MTU 4096\n    GID 1: ::ffff:10.9.0.1 RoCE v2 d0\n";
        assert_eq!(report.in_words(), words);
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["devices"][0]["ports"][0]["gids"][0]["type"], "RoCE v2");
        let none = Report { why_none: Some("none was bought".into()), ..Report::default() };
        assert_eq!(none.in_words(), "no RDMA adapter: none was bought\n");
        assert_eq!(serde_json::to_value(&none).unwrap()["why_none"], "none was bought");
        let set_aside = vec![memory::SetAside { bytes: 2 << 20, pages: 512, free: 500 }];
        let there = HugePagesThere { set_aside, transparent: Some("madvise".into()) };
        let none = Report { huge_pages: there.into(), ..none };
        assert!(none.in_words().ends_with(
            "\nhuge pages: 512 of 2 MiB set aside, 500 of them free; transparent ones to who asks (madvise)\n"
        ));
        let json = serde_json::to_value(&none).unwrap();
        assert_eq!(json["huge_pages"]["set_aside"][0]["free"], 500);
        assert_eq!(json["huge_pages"]["transparent"], "madvise");
    }

    #[test]
    fn this_machine_has_adapters_or_a_reason_why_not() {
        let report = look();
        assert_eq!(report.devices.is_empty(), report.why_none.is_some(), "{report:?}");
    }
}
