//! RDMA adapters, by libibverbs and librdmacm. The crate `rdma-sys` gives types and inline functions; the libraries
//! themselves are opened at run time, so that one program starts everywhere and says what it found.
mod adapter;
mod cm;
mod connection;
mod devices;
mod dial;
mod host;
mod in_use;
#[cfg(test)]
mod layout;
mod lending;
mod library;
mod listener;
#[cfg(test)]
mod mock;
mod provider;
mod query;
mod queue_pair;
mod registration;
mod shared;
#[cfg(test)]
mod tests;
mod verbs;

pub use cm::{Incoming, adapter_at};
pub use devices::{Absence, Device, DeviceLimits, Gid, Port, check_connection_management, devices};
pub use library::{Library, LibraryError};
pub use listener::Listener;
pub use provider::Ibv;
