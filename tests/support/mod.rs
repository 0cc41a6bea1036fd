//! What tests need: captured traffic to look at, written without the code under test, and the real programs.
pub mod pcap;
pub mod programs;
pub mod rdma;
