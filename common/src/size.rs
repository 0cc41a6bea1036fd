//! Numbers of bytes as people write and read them, the same way in every program: powers of 1024, with their own
//! names.
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(pub u64);

/// Text which is no size.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is not a size: write bytes, or a number and KiB, MiB, GiB or TiB")]
pub struct SizeError(pub String);

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

impl FromStr for Size {
    type Err = SizeError;

    /// A whole number and a unit: powers of 1024, however they are written (`K`, `KB` and `KiB` are the same).
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let refused = || SizeError(text.into());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| refused())?;
        let unit = unit.trim_start().to_ascii_lowercase();
        let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
            "" if unit != "ib" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return Err(refused()),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(refused)
    }
}

/// `64 MiB`, or with two digits what is not whole: `1.21 GiB`. Takes a width.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let (unit, shift) = UNITS.into_iter().find(|(_, shift)| bytes >> shift != 0).unwrap_or(("B", 0));
        let text = if bytes.is_multiple_of(1 << shift) {
            format!("{} {unit}", bytes >> shift)
        } else {
            format!("{:.2} {unit}", bytes as f64 / (1_u64 << shift) as f64)
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let written =
            [("512", 512), ("4k", 4096), ("128KiB", 131_072), ("1G", 1 << 30), ("2MB", 2 << 20), ("7 b", 7)];
        for (text, bytes) in written {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "k", "-1", "1.5G", "1X", "1ib", "99999999999999999999", "16777216TiB"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError(text.into())));
        }
    }

    #[test]
    fn sizes_are_written_with_one_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (4096, "4 KiB"),
            (1 << 30, "1 GiB"),
            (1_300_000_000, "1.21 GiB"),
            (5 << 50, "5120 TiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(format!("[{:>8}]", Size(4096)), "[   4 KiB]");
    }
}
