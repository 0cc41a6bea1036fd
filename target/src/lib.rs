//! The target: controllers, queue pairs, backends, and the daemon around them.
pub mod acceptor;
pub mod backend;
pub mod catalog;
pub mod control;
pub mod controller;
pub mod ctl;
pub mod limits;
pub mod metrics;
pub mod poll_group;
pub mod qpair;
pub mod reactor;
pub mod reservation;
pub mod rpc;
pub mod serve;
pub mod throttle;
