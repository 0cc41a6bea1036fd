//! Which RDMA adapters this machine has, in words and numbers, or why none: what an operator looks at first.
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

use super::library::{Library, LibraryError};
use super::query::{self, QueryError};

/// Where the kernel describes adapters.
const SYSFS: &str = "/sys/class/infiniband";

/// One RDMA adapter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Device {
    pub name: String,
    /// As four groups of hexadecimal digits.
    pub node_guid: String,
    /// `InfiniBand` (RoCE too) or `iWARP`.
    pub transport: &'static str,
    /// What it can do, or why it cannot be asked.
    pub details: Result<(DeviceLimits, Vec<Port>), String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceLimits {
    pub queue_pairs: i32,
    pub work_requests: i32,
    pub scatter_entries: i32,
    pub completion_queue_entries: i32,
    pub memory_regions: i32,
    /// In bytes.
    pub memory_region_size: u64,
    /// Of type 1 and 2 together; zero if it has none.
    pub memory_windows: i32,
    /// RDMA Reads one queue pair takes from its peer at once.
    pub reads_in: i32,
    /// RDMA Reads one queue pair has outstanding at once.
    pub reads_out: i32,
    pub shared_receive_queues: i32,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Port {
    pub number: u8,
    pub state: &'static str,
    pub link_layer: &'static str,
    /// In bytes.
    pub active_mtu: u32,
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Gid {
    pub index: u32,
    pub address: Ipv6Addr,
    /// As the kernel says it: `IB/RoCE v1` or `RoCE v2`; empty where it does not.
    pub kind: String,
    /// The network interface it belongs to; empty if to none.
    pub interface: String,
}

impl Device {
    /// Whether a network interface is one of its ports.
    #[must_use]
    pub fn owns(&self, interface: &str) -> bool {
        let by_driver =
            Path::new("/sys/class/net").join(interface).join("device/infiniband").join(&self.name);
        let mut ports = self.details.iter().flat_map(|(_, ports)| ports);
        by_driver.exists() || ports.any(|port| port.gids.iter().any(|gid| gid.interface == interface))
    }
}

/// Whether programs can connect by adapters here; if not, why.
///
/// # Errors
/// What is missing, and what to do about it.
pub fn check_connection_management() -> Result<(), String> {
    // librdmacm itself would complain on the terminal.
    if Path::new("/dev/infiniband/rdma_cm").exists() {
        Ok(())
    } else {
        Err("the kernel offers no connection management to programs: modprobe rdma_ucm".into())
    }
}

/// Why there is no adapter to be seen. Each says what to do about it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Absence {
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(
        "the kernel offers no RDMA to programs: load the adapter's driver and ib_uverbs (modprobe ib_uverbs rdma_ucm)"
    )]
    Kernel,
    #[error("adapters cannot be listed: {0}")]
    Refused(String),
    #[error(
        "the kernel has {0}, but libibverbs no driver for it: install ibverbs-providers, or what the vendor ships"
    )]
    Driver(String),
    #[error(
        "no adapter is there. Software RDMA needs none; to try an adapter's way without one: rdma link add rxe0 type rxe netdev INTERFACE"
    )]
    None,
}

/// All adapters, or why there are none.
///
/// # Errors
/// What is missing. No adapter at all is an error too.
pub fn devices() -> Result<Vec<Device>, Absence> {
    list(Library::get()?, Path::new(SYSFS))
}

fn list(library: &Library, sysfs: &Path) -> Result<Vec<Device>, Absence> {
    let found = query::devices(library).map_err(|error| match error {
        QueryError::NoKernelSupport => Absence::Kernel,
        QueryError::Refused(error) => Absence::Refused(error.to_string()),
    })?;
    if found.is_empty() {
        let known = names(sysfs);
        return Err(if known.is_empty() { Absence::None } else { Absence::Driver(known.join(", ")) });
    }
    let with_gids = |mut device: Device| {
        if let Ok((_, ports)) = &mut device.details {
            for port in ports {
                port.gids = gids(&sysfs.join(&device.name).join("ports").join(port.number.to_string()));
            }
        }
        device
    };
    Ok(found.into_iter().map(with_gids).collect())
}

/// Addresses of a port, those in use only.
fn gids(port: &Path) -> Vec<Gid> {
    let read = |place: &str, index: u32| {
        // A row that is not in use answers with an error.
        let text = fs::read_to_string(port.join(place).join(index.to_string())).unwrap_or_default();
        text.trim().to_owned()
    };
    let mut indices: Vec<u32> =
        names(&port.join("gids")).iter().filter_map(|name| name.parse().ok()).collect();
    indices.sort_unstable();
    let row = |index| {
        let address: Ipv6Addr = read("gids", index).parse().ok()?;
        let kind = read("gid_attrs/types", index);
        let interface = read("gid_attrs/ndevs", index);
        (!address.is_unspecified()).then_some(Gid { index, address, kind, interface })
    };
    indices.into_iter().filter_map(row).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::super::query::mock;
    use super::*;

    #[test]
    fn an_adapter_is_described_with_the_addresses_the_kernel_tells_of() {
        let sysfs = tempfile::tempdir().unwrap();
        let port = sysfs.path().join("mock0/ports/1");
        for place in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
            fs::create_dir_all(port.join(place)).unwrap();
        }
        fs::write(port.join("gids/0"), "0000:0000:0000:0000:0000:ffff:0a09:0001\n").unwrap();
        fs::write(port.join("gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n").unwrap();
        fs::write(port.join("gid_attrs/types/0"), "RoCE v2\n").unwrap();
        fs::write(port.join("gid_attrs/ndevs/0"), "eth0\n").unwrap();
        let found = list(&mock::library(), sysfs.path()).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].transport), ("mock0", "InfiniBand"));
        assert_eq!(found[0].node_guid, "0102:0304:0506:0708");
        let (limits, ports) = found[0].details.as_ref().unwrap();
        assert_eq!((limits.queue_pairs, limits.reads_out, limits.memory_windows), (1000, 16, 7));
        assert_eq!((ports[0].state, ports[0].link_layer, ports[0].active_mtu), ("active", "Ethernet", 4096));
        assert_eq!(ports[0].gids.len(), 1);
        assert_eq!(ports[0].gids[0].address, std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped());
        assert_eq!(
            (ports[0].gids[0].kind.as_str(), ports[0].gids[0].interface.as_str()),
            ("RoCE v2", "eth0")
        );
        let why = found[1].details.as_ref().unwrap_err();
        assert!(why.contains("/dev/infiniband"), "{why}");
    }

    #[test]
    fn none_is_told_apart_from_one_without_a_driver_or_a_kernel_without_rdma() {
        let sysfs = tempfile::tempdir().unwrap();
        assert_eq!(list(&mock::empty(), sysfs.path()), Err(Absence::None));
        fs::create_dir(sysfs.path().join("vendor0")).unwrap();
        assert_eq!(list(&mock::empty(), sysfs.path()), Err(Absence::Driver("vendor0".into())));
        assert_eq!(list(&mock::without_kernel(), sysfs.path()), Err(Absence::Kernel));
    }
}
