//! Providers of RDMA: each implements the traits of [`crate::verbs`] over something that carries bytes.
#[cfg(feature = "sim")]
pub mod sim;
