//! Providers: what stands behind the verbs traits.
pub mod both;
#[cfg(feature = "ibv")]
pub mod ibv;
mod receives;
pub mod shm;
#[cfg(feature = "sim")]
pub mod sim;
pub mod soft;
pub mod tcp;
pub mod wires;
