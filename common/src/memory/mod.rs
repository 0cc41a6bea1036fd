//! Memory which the fabric and the storage ring may touch: regions, the table that names them, the pool of
//! buffers cut from one, and memory which a program lends.
mod copy;
mod huge;
mod lend;
mod pool;
mod region;
mod table;

pub use huge::{HugePages, HugePagesError, HugePagesThere, SetAside};
pub use lend::{Away, Lendable, Loan, Own, PAGE, Pages};
pub use pool::{Account, Lease, Pool, SizeClass};
pub use region::Region;
pub use table::Memory;
