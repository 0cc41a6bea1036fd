//! Providers: what stands behind the verbs traits.
#[cfg(feature = "ibv")]
pub mod ibv;
mod receives;
#[cfg(feature = "sim")]
pub mod sim;
pub mod soft;
pub mod tcp;
