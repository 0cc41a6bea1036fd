//! NVMe Qualified Names: how hosts and subsystems are called.
use std::fmt;
use std::str::FromStr;

use arrayvec::ArrayString;

use super::text;

/// The name every discovery subsystem answers to.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Longest name, in bytes: its field of 256 bytes is the wire's, the limit the specification's.
const LENGTH_MAX: usize = 223;

/// A valid NQN. Names are compared as bytes.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Nqn(ArrayString<LENGTH_MAX>);

/// Why a name is not an NQN.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NqnError {
    #[error("an NQN has at most 223 bytes, this one has {0}")]
    TooLong(usize),
    #[error("an NQN begins with \"nqn.\"")]
    Prefix,
    #[error("an NQN has no blanks and no control characters")]
    Character,
    #[error("an NQN is UTF-8")]
    Encoding,
}

impl Nqn {
    /// The well-known discovery subsystem.
    #[must_use]
    pub fn discovery() -> Self {
        DISCOVERY_NQN.parse().expect("the well-known name is a valid one")
    }

    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY_NQN
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// From its field on the wire: up to the first NUL, the last byte counting as one.
    ///
    /// # Errors
    /// If what stands there is no NQN.
    pub fn from_field(field: &[u8; 256]) -> Result<Self, NqnError> {
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len() - 1);
        std::str::from_utf8(&field[..end]).map_err(|_| NqnError::Encoding)?.parse()
    }

    /// Its field on the wire.
    #[must_use]
    pub fn to_field(&self) -> [u8; 256] {
        text::terminated(self.as_str())
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        if !name.starts_with("nqn.") {
            return Err(NqnError::Prefix);
        }
        if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(NqnError::Character);
        }
        ArrayString::from(name).map(Self).map_err(|_| NqnError::TooLong(name.len()))
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_its_field() {
        let nqn: Nqn = "nqn.2014-08.org.example:sub1".parse().unwrap();
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        let longest: Nqn = format!("nqn.{}", "x".repeat(219)).parse().unwrap();
        assert_eq!(Nqn::from_field(&longest.to_field()), Ok(longest));
        assert!(Nqn::discovery().is_discovery());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        assert_eq!(format!("nqn.{}", "x".repeat(220)).parse::<Nqn>(), Err(NqnError::TooLong(224)));
        assert_eq!("".parse::<Nqn>(), Err(NqnError::Prefix));
        assert_eq!("iqn.2014".parse::<Nqn>(), Err(NqnError::Prefix));
        assert_eq!("nqn.a b".parse::<Nqn>(), Err(NqnError::Character));
        assert_eq!("nqn.a\n".parse::<Nqn>(), Err(NqnError::Character));
        let mut field = [0; 256];
        field[..5].copy_from_slice(b"nqn.\xFF");
        assert_eq!(Nqn::from_field(&field), Err(NqnError::Encoding));
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::Prefix));
    }
}
