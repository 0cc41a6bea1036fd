//! Text in fixed fields: NUL-terminated names, and ASCII padded with spaces (or, by some, with NULs).

/// `text` at the start of a field of `N` bytes, the rest spaces. What does not fit is cut off.
#[must_use]
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    filled(text, b' ')
}

/// `text` at the start of a field of `N` bytes, the rest NULs. The last byte always is one.
#[must_use]
pub fn terminated<const N: usize>(text: &str) -> [u8; N] {
    let mut field = filled(text, 0);
    field[N - 1] = 0;
    field
}

/// What a field says: up to the first NUL, without the spaces behind, bytes which are not UTF-8 replaced.
#[must_use]
pub fn read(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).trim_end_matches(' ').to_owned()
}

fn filled<const N: usize>(text: &str, padding: u8) -> [u8; N] {
    let mut field = [padding; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paddings_read_alike() {
        assert_eq!(read(&padded::<32>("4420")), "4420");
        assert_eq!(read(&terminated::<32>("4420")), "4420");
        assert_eq!(read(&padded::<4>("4420 and more")), "4420");
        assert_eq!(read(&terminated::<4>("4420")), "442");
        assert_eq!(read(b"\xFFab"), "\u{FFFD}ab");
    }
}
