//! RDMA adapters, by libibverbs and librdmacm. The crate `rdma-sys` gives types and inline functions; the libraries
//! themselves are opened at run time, so that one program starts everywhere and says what it found.
mod devices;
#[cfg(test)]
mod layout;
mod library;
mod query;

pub use devices::{Absence, Device, DeviceLimits, Gid, Port, devices};
pub use library::{Library, LibraryError};
