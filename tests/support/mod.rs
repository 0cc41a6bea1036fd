//! What tests need to look at captured traffic, written without the code under test.
pub mod pcap;
pub mod rdma;
