//! Providers: what stands behind the verbs traits.
#[cfg(feature = "sim")]
pub mod sim;
pub mod soft;
pub mod tcp;
