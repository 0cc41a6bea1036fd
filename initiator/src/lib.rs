//! The initiator as a library: attach NVMe namespaces over RDMA and use them, without the kernel's help.
pub mod attach;
pub mod cli;
pub mod export;
pub mod host;
pub mod volume;
