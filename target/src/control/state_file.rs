//! Small files of the state directory: lines of text below a head, which says what they are and in which version, and
//! above a checksum of all before it. Each is replaced as a whole.
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::str::Lines;

/// A crash leaves the old file or the new one, never a part.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = File::create(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    sync_directory_of(path)
}

/// Makes durable that a name has come, gone, or is another file's.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The text of a file with these lines, each of which ends as lines do.
pub(super) fn seal(head: &str, lines: &str) -> String {
    let body = format!("{head}\n{lines}");
    let sum = crc32fast::hash(body.as_bytes());
    format!("{body}crc32 {sum:08x}\n")
}

/// The lines of a file which is as it was sealed.
///
/// # Errors
/// In which way it is not.
pub(super) fn unseal<'a>(bytes: &'a [u8], head: &str) -> Result<Lines<'a>, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let body_length = text.rfind("crc32 ").ok_or("its end is missing")?;
    let (body, sum) = text.split_at(body_length);
    if sum != format!("crc32 {:08x}\n", crc32fast::hash(body.as_bytes())) {
        return Err("its checksum does not match");
    }
    Ok(body.strip_prefix(head).ok_or("it is of another version")?.trim_start().lines())
}
