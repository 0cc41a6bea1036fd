//! The initiator as a library: attach NVMe namespaces over RDMA and use them, without the kernel's help.
//!
//! ```no_run
//! use ironside_common::identity::host_identity;
//! use ironside_initiator::attach::{AttachOptions, Attached, discover};
//! use ironside_initiator::host::HostOptions;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = host_identity()?;
//! let nqn = "nqn.2014-08.org.example:sub1".parse()?;
//! let host = HostOptions::new("192.0.2.1:4420".parse()?, nqn, identity.nqn, identity.id);
//! for entry in discover(AttachOptions::new(host.clone()))?.discovered.entries {
//!     println!("{entry}");
//! }
//! let attached = Attached::attach(AttachOptions::new(host))?;
//! for namespace in &attached.description().namespaces {
//!     println!("namespace {} of {} bytes", namespace.nsid, namespace.geometry.size);
//! }
//! attached.close();
//! # Ok(())
//! # }
//! ```
//!
//! A program's own reads and writes go by [`attach::Direct`]. Memory of whole pages is lent to the target where it lies,
//! for one request at a time:
//!
//! ```no_run
//! # fn example(attached: &ironside_initiator::attach::Attached) -> Result<(), Box<dyn std::error::Error>> {
//! use ironside_common::memory::Pages;
//!
//! let volume = attached.open(1)?;
//! let mut buffer = volume.register(Pages::zeroed(1 << 20))?;
//! buffer[..5].copy_from_slice(b"hello");
//! let (buffer, written) = volume.write(0, buffer, false).wait();
//! written?;
//! let (buffer, read) = volume.read(0, buffer).wait();
//! read?;
//! assert_eq!(&buffer[..5], b"hello");
//! let pages: Pages = buffer.into_inner();
//! # Ok(())
//! # }
//! ```
//!
//! What serves others is an [`attach::Export`], which lives in the reactor of its controller: the NBD
//! server and the FUSE file of [`export`] are two, a load generator or a copy would be others. The machine
//! below, [`host::Host`], runs over any provider of the verbs, and under a virtual clock as well.
pub mod attach;
pub mod cli;
pub mod export;
pub mod host;
pub mod paths;
pub mod volume;
