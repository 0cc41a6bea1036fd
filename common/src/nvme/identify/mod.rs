//! The structures Identify returns (NVM Express base specification 2.2, section 5.1.13; NVM command set
//! specification 1.2, section 4.1.5), for both ends: the target builds them, the initiator reads them. Each fills 4096
//! bytes, so all lists have a fixed size.
mod controller;
mod list;
mod namespace;

pub use controller::{Anacap, Cmic, Controller, ControllerType, Lpa, Oncs, Sgls};
pub use list::{
    ActiveNamespaces, DESCRIPTOR_HEAD, Descriptor, DescriptorWriter, active_namespaces, command_sets,
    descriptors, write_active_namespaces, write_controllers,
};
pub use namespace::{CommandSetController, CommandSetNamespace, IndependentNamespace, LbaFormat, Namespace};

/// Bytes of every Identify structure.
pub const SIZE: u32 = 4096;
