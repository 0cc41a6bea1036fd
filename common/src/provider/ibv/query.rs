//! What libibverbs answers about the adapters there are.
use std::ffi::CStr;
use std::io;
use std::mem::zeroed;

use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_port_attr, ibv_port_state, ibv_transport_type};

use super::devices::{Device, DeviceLimits, Port};
use super::library::{Library, text};

/// Of an enumeration without a name in the headers, which `rdma-sys` leaves out.
const LINK_LAYER_INFINIBAND: u8 = 1;
const LINK_LAYER_ETHERNET: u8 = 2;

/// Why adapters cannot be listed.
#[derive(Debug)]
pub(super) enum QueryError {
    NoKernelSupport,
    Refused(io::Error),
}

/// All adapters that libibverbs has a driver for; addresses are not asked for.
pub(super) fn devices(library: &Library) -> Result<Vec<Device>, QueryError> {
    let mut count = 0;
    // SAFETY: it writes the number of devices.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        let unsupported = error.raw_os_error() == Some(libc::ENOSYS);
        return Err(if unsupported { QueryError::NoKernelSupport } else { QueryError::Refused(error) });
    }
    let mut found = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let entry = unsafe { list.add(index) };
        // SAFETY: as above, and each is a device until the list is freed.
        let device = unsafe { entry.read() };
        found.push(describe(library, device));
    }
    // SAFETY: the list is ours and freed once; nothing of it is used after.
    unsafe { (library.free_device_list)(list) };
    Ok(found)
}

/// `device` is one of a list that has not been freed.
fn describe(library: &Library, device: *mut ibv_device) -> Device {
    // SAFETY: a device of the list.
    let name = unsafe { (library.get_device_name)(device) };
    // SAFETY: a name ends with a zero byte, and lives as long as its device.
    let name = text(unsafe { CStr::from_ptr(name) });
    // SAFETY: a device of the list.
    let guid = unsafe { (library.get_device_guid)(device) };
    // SAFETY: as above.
    let transport = unsafe { (*device).transport_type };
    let details = Context::open(library, device).and_then(|context| context.details());
    let guid = u64::from_be(guid);
    let groups = [48, 32, 16, 0].map(|shift| format!("{:04x}", guid >> shift & 0xFFFF));
    Device { name, node_guid: groups.join(":"), transport: transport_name(transport), details }
}

/// An adapter opened to be asked.
struct Context<'a> {
    library: &'a Library,
    context: *mut ibv_context,
}

impl<'a> Context<'a> {
    fn open(library: &'a Library, device: *mut ibv_device) -> Result<Self, String> {
        // SAFETY: a device of a list that has not been freed.
        let context = unsafe { (library.open_device)(device) };
        if context.is_null() {
            let error = io::Error::last_os_error();
            return Err(format!(
                "it cannot be opened ({error}): may this user read and write /dev/infiniband/uverbs*?"
            ));
        }
        Ok(Self { library, context })
    }

    fn details(&self) -> Result<(DeviceLimits, Vec<Port>), String> {
        // SAFETY: a structure of numbers, for which zeroes are valid.
        let mut attributes: ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the context is open, and the structure is the one it fills.
        let result = unsafe { (self.library.query_device)(self.context, &raw mut attributes) };
        if result != 0 {
            return Err(format!("it does not say its limits: {}", io::Error::from_raw_os_error(result)));
        }
        let ports = (1..=attributes.phys_port_cnt).map(|number| self.port(number));
        Ok((limits(&attributes), ports.collect::<Result<_, _>>()?))
    }

    fn port(&self, number: u8) -> Result<Port, String> {
        // SAFETY: a structure of numbers, for which zeroes are valid.
        let mut attributes: ibv_port_attr = unsafe { zeroed() };
        // SAFETY: the context is open, and the structure begins with the one it fills.
        let result = unsafe { (self.library.query_port)(self.context, number, &raw mut attributes) };
        if result != 0 {
            return Err(format!("port {number} says nothing: {}", io::Error::from_raw_os_error(result)));
        }
        Ok(Port {
            number,
            state: state_name(attributes.state),
            link_layer: match attributes.link_layer {
                LINK_LAYER_ETHERNET => "Ethernet",
                LINK_LAYER_INFINIBAND => "InfiniBand",
                _ => "unspecified",
            },
            // IBV_MTU_256 is 1, and each further one is twice as much.
            active_mtu: 128_u32.checked_shl(attributes.active_mtu).unwrap_or(0),
            gids: Vec::new(),
        })
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by us, closed once, and nothing was made of it.
        unsafe { (self.library.close_device)(self.context) };
    }
}

const fn limits(attributes: &ibv_device_attr) -> DeviceLimits {
    DeviceLimits {
        queue_pairs: attributes.max_qp,
        work_requests: attributes.max_qp_wr,
        scatter_entries: attributes.max_sge,
        completion_queue_entries: attributes.max_cqe,
        memory_regions: attributes.max_mr,
        memory_region_size: attributes.max_mr_size,
        memory_windows: attributes.max_mw,
        reads_in: attributes.max_qp_rd_atom,
        reads_out: attributes.max_qp_init_rd_atom,
        shared_receive_queues: attributes.max_srq,
    }
}

const fn transport_name(transport: ibv_transport_type::Type) -> &'static str {
    match transport {
        ibv_transport_type::IBV_TRANSPORT_IB => "InfiniBand",
        ibv_transport_type::IBV_TRANSPORT_IWARP => "iWARP",
        _ => "other",
    }
}

const fn state_name(state: ibv_port_state::Type) -> &'static str {
    match state {
        ibv_port_state::IBV_PORT_DOWN => "down",
        ibv_port_state::IBV_PORT_INIT => "initializing",
        ibv_port_state::IBV_PORT_ARMED => "armed",
        ibv_port_state::IBV_PORT_ACTIVE => "active",
        ibv_port_state::IBV_PORT_ACTIVE_DEFER => "active, deferred",
        _ => "unknown",
    }
}

/// A libibverbs of two adapters, of which the second may not be opened.
#[cfg(test)]
pub(super) mod mock {
    use std::ffi::{c_char, c_int};
    use std::ptr::null_mut;

    use super::*;

    unsafe extern "C" fn two(count: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: a structure of numbers and pointers, for which zeroes are valid.
        let mut first: ibv_device = unsafe { zeroed() };
        // SAFETY: as above.
        let mut second: ibv_device = unsafe { zeroed() };
        for (device, name) in [(&mut first, c"mock0"), (&mut second, c"mock1")] {
            device.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
            for (place, byte) in device.name.iter_mut().zip(name.to_bytes()) {
                *place = byte.cast_signed();
            }
        }
        // SAFETY: the caller gave a place for it.
        unsafe { count.write(2) };
        let list = Box::new([Box::into_raw(Box::new(first)), Box::into_raw(Box::new(second))]);
        Box::into_raw(list).cast()
    }

    unsafe extern "C" fn free_two(list: *mut *mut ibv_device) {
        // SAFETY: made above.
        let list = unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) };
        for device in *list {
            // SAFETY: made above.
            drop(unsafe { Box::from_raw(device) });
        }
    }

    unsafe extern "C" fn none(count: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller gave a place for it.
        unsafe { count.write(0) };
        Box::into_raw(Box::new(null_mut()))
    }

    unsafe extern "C" fn free_none(list: *mut *mut ibv_device) {
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(list) });
    }

    unsafe extern "C" fn no_kernel(_: *mut c_int) -> *mut *mut ibv_device {
        nix::errno::Errno::ENOSYS.set();
        null_mut()
    }

    unsafe extern "C" fn name(device: *mut ibv_device) -> *const c_char {
        // SAFETY: a device made above.
        unsafe { (&raw const (*device).name).cast() }
    }

    unsafe extern "C" fn guid(_: *mut ibv_device) -> u64 {
        0x0102_0304_0506_0708_u64.to_be()
    }

    unsafe extern "C" fn open(device: *mut ibv_device) -> *mut ibv_context {
        // SAFETY: a device made above.
        let name = unsafe { (*device).name };
        if name.starts_with(&b"mock1".map(u8::cast_signed)) {
            nix::errno::Errno::EACCES.set();
            return null_mut();
        }
        // SAFETY: a structure of numbers, pointers and optional functions, for which zeroes are valid.
        Box::into_raw(Box::new(unsafe { zeroed::<ibv_context>() }))
    }

    unsafe extern "C" fn close(context: *mut ibv_context) -> c_int {
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(context) });
        0
    }

    unsafe extern "C" fn query_device(_: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int {
        // SAFETY: the caller gave a whole one.
        let attributes = unsafe { &mut *attributes };
        attributes.max_qp = 1000;
        attributes.max_qp_init_rd_atom = 16;
        attributes.max_mw = 7;
        attributes.phys_port_cnt = 1;
        0
    }

    unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, attributes: *mut ibv_port_attr) -> c_int {
        // SAFETY: the caller gave a whole one.
        let attributes = unsafe { &mut *attributes };
        attributes.state = ibv_port_state::IBV_PORT_ACTIVE;
        attributes.active_mtu = 5;
        attributes.link_layer = LINK_LAYER_ETHERNET;
        0
    }

    pub(in super::super) fn library() -> Library {
        Library {
            get_device_list: two,
            free_device_list: free_two,
            get_device_name: name,
            get_device_guid: guid,
            open_device: open,
            close_device: close,
            query_device,
            query_port,
            // What a description does not call.
            ..Library::get().expect("what building takes brings the libraries").clone()
        }
    }

    pub(in super::super) fn empty() -> Library {
        Library { get_device_list: none, free_device_list: free_none, ..library() }
    }

    pub(in super::super) fn without_kernel() -> Library {
        Library { get_device_list: no_kernel, ..library() }
    }
}
