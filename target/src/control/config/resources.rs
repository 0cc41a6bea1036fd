//! Limits of what is taken on, as an operator writes them.
use std::str::FromStr;

use ironside_common::size::Size;

use super::ValueError;
use crate::limits::{Limits, Resource};

/// Sets one by its text.
///
/// # Errors
/// If there may not be so many.
pub(super) fn set(limits: &mut Limits, resource: Resource, text: &str) -> Result<(), ValueError> {
    let value = if resource.is_bytes() { Some(text.parse::<Size>()?.0) } else { text.parse().ok() };
    match value.filter(|&value| resource.admits(value)) {
        Some(value) => *limits = limits.with(resource, value),
        None => {
            let found = value.map_or_else(|| format!("`{text}`"), |value| resource.written(value));
            return Err(ValueError::Resource { expected: resource.expected(), found });
        }
    }
    Ok(())
}

/// `connections=1000,buffers=64MiB`, as flags have it.
impl FromStr for Limits {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut limits = Self::default();
        for option in text.split(',') {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let Some(resource) = Resource::ALL.into_iter().find(|one| one.key() == key) else {
                let known = Resource::ALL.map(Resource::key).join(", ");
                return Err(ValueError::NoResource { found: key.into(), known });
            };
            set(&mut limits, resource, value)?;
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them() {
        let limits: Limits = "connections=70,buffers=64MiB,transfer-size=256k".parse().unwrap();
        let expected = Limits::default()
            .with(Resource::Connections, 70)
            .with(Resource::Buffers, 64 << 20)
            .with(Resource::TransferSize, 256 << 10);
        assert_eq!(limits, expected);
        let refused = |text: &str| text.parse::<Limits>().unwrap_err().to_string();
        assert_eq!(refused("connections=0"), "must be between 1 and 65536, not 0");
        assert_eq!(refused("io-queues=x"), "must be between 1 and 256, not `x`");
        assert_eq!(
            refused("transfer-size=192k"),
            "must be a power of two from 128 KiB to 1 MiB, not 192 KiB"
        );
        assert_eq!(refused("in-capsule=1"), "must be whole blocks of 4096 bytes from 0 B to 16 KiB, not 1 B");
        assert!(refused("buffers=1MiB").contains("from 16 MiB to 16 GiB, not 1 MiB"));
        assert!(refused("buffers=much").contains("`much` is not a size"));
        assert!(refused("queues=1").contains("there are buffers, connections, connections-per-address"));
    }
}
