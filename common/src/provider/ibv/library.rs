//! The shared libraries, opened at run time, and the functions of theirs that we call, each looked up once. What is
//! inline in their headers (posting, polling) goes through tables in the objects they make, and needs no symbol.
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::sync::OnceLock;

use rdma_sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr, ibv_transport_type,
    ibv_wc_status, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

const VERBS: &CStr = c"libibverbs.so.1";
const CM: &CStr = c"librdmacm.so.1";

/// Why the libraries cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LibraryError {
    #[error(
        "{name} cannot be opened ({reason}): install rdma-core (on Debian: apt-get install libibverbs1 librdmacm1 ibverbs-providers)"
    )]
    Missing { name: String, reason: String },
    #[error("{library} has no {function}: it is older than rdma-core 28; install a newer one")]
    TooOld { library: String, function: String },
}

/// Makes [`Library`]: a field for each function, by the name under which its library has it.
macro_rules! library {
    ($($opened:ident = $path:ident { $($(#[$doc:meta])* $field:ident = $name:literal: fn($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// Functions of libibverbs and librdmacm. Their contracts are their manuals'.
        #[derive(Clone, Debug)]
        pub struct Library {
            $($($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Library {
            fn open() -> Result<Self, LibraryError> {
                $(let $opened = Opened::open($path)?;)*
                Ok(Self {
                    $($(
                        // SAFETY: the field's type is the signature in the library's header of the name looked up;
                        // a structure that a function fills is, or begins with, the one the field names.
                        $field: unsafe { $opened.function($name) }?,
                    )*)*
                })
            }
        }
    };
}

library! {
    verbs = VERBS {
        get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
        free_device_list = c"ibv_free_device_list": fn(*mut *mut ibv_device);
        get_device_name = c"ibv_get_device_name": fn(*mut ibv_device) -> *const c_char;
        get_device_guid = c"ibv_get_device_guid": fn(*mut ibv_device) -> u64;
        open_device = c"ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
        close_device = c"ibv_close_device": fn(*mut ibv_context) -> c_int;
        query_device = c"ibv_query_device": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        /// It fills the fields up to `flags` only, so what it is given is zeroed before.
        query_port = c"ibv_query_port": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        alloc_pd = c"ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd = c"ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
        reg_mr = c"ibv_reg_mr": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        dereg_mr = c"ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
        create_comp_channel = c"ibv_create_comp_channel": fn(*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel = c"ibv_destroy_comp_channel": fn(*mut ibv_comp_channel) -> c_int;
        create_cq = c"ibv_create_cq":
            fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        destroy_cq = c"ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
        create_srq = c"ibv_create_srq": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        destroy_srq = c"ibv_destroy_srq": fn(*mut ibv_srq) -> c_int;
        modify_qp = c"ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        get_cq_event = c"ibv_get_cq_event":
            fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events = c"ibv_ack_cq_events": fn(*mut ibv_cq, c_uint);
        get_async_event = c"ibv_get_async_event": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event = c"ibv_ack_async_event": fn(*mut ibv_async_event);
        event_type_str = c"ibv_event_type_str": fn(c_uint) -> *const c_char;
        wc_status_str = c"ibv_wc_status_str": fn(ibv_wc_status::Type) -> *const c_char;
    }
    cm = CM {
        create_event_channel = c"rdma_create_event_channel": fn() -> *mut rdma_event_channel;
        destroy_event_channel = c"rdma_destroy_event_channel": fn(*mut rdma_event_channel);
        get_cm_event = c"rdma_get_cm_event": fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        ack_cm_event = c"rdma_ack_cm_event": fn(*mut rdma_cm_event) -> c_int;
        event_str = c"rdma_event_str": fn(rdma_cm_event_type::Type) -> *const c_char;
        create_id = c"rdma_create_id":
            fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space::Type) -> c_int;
        destroy_id = c"rdma_destroy_id": fn(*mut rdma_cm_id) -> c_int;
        migrate_id = c"rdma_migrate_id": fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        bind_addr = c"rdma_bind_addr": fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        resolve_addr = c"rdma_resolve_addr":
            fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        resolve_route = c"rdma_resolve_route": fn(*mut rdma_cm_id, c_int) -> c_int;
        connect = c"rdma_connect": fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        listen = c"rdma_listen": fn(*mut rdma_cm_id, c_int) -> c_int;
        accept = c"rdma_accept": fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        reject = c"rdma_reject": fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        disconnect = c"rdma_disconnect": fn(*mut rdma_cm_id) -> c_int;
        create_qp = c"rdma_create_qp": fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        destroy_qp = c"rdma_destroy_qp": fn(*mut rdma_cm_id);
    }
}

impl Library {
    /// The libraries of this machine. They are opened once, and never closed.
    ///
    /// # Errors
    /// If one is missing or too old.
    pub fn get() -> Result<&'static Self, LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    /// The name of an adapter.
    ///
    /// # Safety
    /// The adapter is open.
    pub(super) unsafe fn name_of(&self, context: *mut ibv_context) -> String {
        // SAFETY: the caller's promise.
        let device = unsafe { (*context).device };
        // SAFETY: as above.
        let name = unsafe { (self.get_device_name)(device) };
        // SAFETY: a name ends with a zero byte, and lives as long as its device.
        text(unsafe { CStr::from_ptr(name) })
    }

    /// Whether an adapter speaks iWARP.
    ///
    /// # Safety
    /// The adapter is open.
    pub(super) unsafe fn is_iwarp(&self, context: *mut ibv_context) -> bool {
        // SAFETY: the caller's promise.
        let device = unsafe { (*context).device };
        // SAFETY: as above.
        unsafe { (*device).transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP }
    }

    /// What a completion's status means.
    pub(super) fn status_in_words(&self, status: ibv_wc_status::Type) -> String {
        // SAFETY: it takes any number.
        let words = unsafe { (self.wc_status_str)(status) };
        // SAFETY: a constant string of the library.
        text(unsafe { CStr::from_ptr(words) })
    }
}

/// One shared library, open for good.
struct Opened {
    name: &'static CStr,
    handle: *mut c_void,
}

impl Opened {
    fn open(name: &'static CStr) -> Result<Self, LibraryError> {
        // SAFETY: the name ends with a zero byte; constructors of rdma-core only set up tables of its own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(LibraryError::Missing { name: text(name), reason: last_error() });
        }
        Ok(Self { name, handle })
    }

    /// # Safety
    /// `F` is a function pointer of the type which the library gives the function of this name.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, LibraryError> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is open, and the name ends with a zero byte.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(LibraryError::TooOld { library: text(self.name), function: text(name) });
        }
        // SAFETY: an address of a function, of the type the caller promises, and as large as a pointer.
        Ok(unsafe { transmute_copy(&address) })
    }
}

fn last_error() -> String {
    // SAFETY: no argument; the string is copied before anything else asks the loader.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: not null, so a string of the loader's which ends with a zero byte.
    text(unsafe { CStr::from_ptr(error) })
}

pub(super) fn text(string: &CStr) -> String {
    string.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_which_is_missing_or_lacks_a_function_is_named_with_the_remedy() {
        let Err(missing) = Opened::open(c"libironside-has-no-such-library.so.9") else { panic!("it opened") };
        let said = missing.to_string();
        assert!(said.contains("such-library.so.9") && said.contains("install rdma-core"), "{said}");
        let libc = Opened::open(c"libc.so.6").unwrap();
        // SAFETY: nothing is called.
        let found: Result<unsafe extern "C" fn(), _> = unsafe { libc.function(c"ironside_no_such_function") };
        let said = found.unwrap_err().to_string();
        assert!(said.contains("ironside_no_such_function") && said.contains("newer"), "{said}");
    }
}
