//! What the target is told while it serves: JSON-RPC 2.0 over a Unix socket, with SPDK's names and shapes for what we have, so
//! that SPDK's tools work. All of it happens on the control thread; no reactor knows of it.
mod addresses;
mod bdevs;
mod call;
mod configuration;
mod error;
mod frame;
mod hosts;
mod iostat;
mod listeners;
mod methods;
mod namespaces;
mod parameters;
mod server;
mod status;
mod subject;
mod subsystems;
#[cfg(test)]
mod tests;
mod transports;

pub use self::call::answer;
pub use self::error::RpcError;
pub use self::frame::{FrameError, Framer, REQUEST_BYTES_MAX};
pub use self::methods::names;
pub use self::server::{CLIENTS_MAX, ControlError, Server};
pub use self::subject::{Applied, Failure, Subject};
