//! What both ends of Ironside share: the NVMe wire formats, software RDMA, the verbs traits and the
//! reactor. Arrows of `use` go one way: `time`, `nvme`, `iwarp` and `verbs` know nothing of the rest.
pub mod auth;
pub mod identity;
pub mod iwarp;
pub mod memory;
pub mod nvme;
pub mod provider;
pub mod reactor;
pub mod size;
pub mod time;
pub mod unix_socket;
pub mod verbs;
