//! The shared libraries, opened at run time, and the functions of theirs that we call, each looked up once. What is
//! inline in their headers (posting, polling) goes through tables in the objects they make, and needs no symbol.
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::sync::OnceLock;

use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_port_attr};

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

/// Functions of libibverbs. Their contracts are its manual's.
#[derive(Clone, Debug)]
pub struct Library {
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub(super) get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    pub(super) get_device_guid: unsafe extern "C" fn(*mut ibv_device) -> u64,
    pub(super) open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    pub(super) close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
    pub(super) query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    /// It fills the fields up to `flags` only, so what it is given is zeroed before.
    pub(super) query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
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

    fn open() -> Result<Self, LibraryError> {
        let verbs = Opened::open(VERBS)?;
        // What it has is used by connections only, but half a stack is no use to anybody.
        Opened::open(CM)?;
        // SAFETY: this and each below: the field's type is the signature in <infiniband/verbs.h> of the name looked up.
        let get_device_list = unsafe { verbs.function(c"ibv_get_device_list") }?;
        // SAFETY: as above.
        let free_device_list = unsafe { verbs.function(c"ibv_free_device_list") }?;
        // SAFETY: as above.
        let get_device_name = unsafe { verbs.function(c"ibv_get_device_name") }?;
        // SAFETY: as above.
        let get_device_guid = unsafe { verbs.function(c"ibv_get_device_guid") }?;
        // SAFETY: as above.
        let open_device = unsafe { verbs.function(c"ibv_open_device") }?;
        // SAFETY: as above.
        let close_device = unsafe { verbs.function(c"ibv_close_device") }?;
        // SAFETY: as above.
        let query_device = unsafe { verbs.function(c"ibv_query_device") }?;
        // SAFETY: as above; the structure it is given begins with the one it fills.
        let query_port = unsafe { verbs.function(c"ibv_query_port") }?;
        Ok(Self {
            get_device_list,
            free_device_list,
            get_device_name,
            get_device_guid,
            open_device,
            close_device,
            query_device,
            query_port,
        })
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
