//! How a volume reaches other programs on this machine: as an NBD export on a Unix socket, or as one file
//! of a FUSE file system which a loop device turns into a block device.
pub mod fuse;
pub mod loop_device;
pub mod nbd;
#[cfg(test)]
mod tests;
pub mod usage;
