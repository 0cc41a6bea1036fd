//! Memory which the fabric and the storage ring may touch: regions, the table that names them, and the
//! pool of buffers cut from one.
mod copy;
mod pool;
mod region;
mod table;

pub use pool::{Account, Lease, Pool, SizeClass};
pub use region::Region;
pub use table::Memory;
