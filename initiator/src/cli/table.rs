//! JSON, and tables as nvme-cli writes them.
use std::io::{self, Write};

use serde_json::Value;

use super::error::CliError;

/// Prints JSON for programs, readable for people.
pub(super) fn print_json(value: &Value) {
    println!("{value:#}");
}

/// A number of 128 bits, which JSON has as a number where it can.
pub(super) fn json_number(number: u128) -> Value {
    u64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from)
}

/// Writes bytes as they are.
pub(super) fn write_raw(bytes: &[u8]) -> Result<(), CliError> {
    let written = io::stdout().write_all(bytes);
    written.map_err(|source| CliError::System { doing: "writing to the standard output", source })
}

/// Bytes in rows of sixteen, as nvme-cli shows them.
pub(super) fn hexdump(bytes: &[u8]) -> String {
    const ROW: usize = 16;
    let columns: String = (0..ROW).map(|column| format!("{column:3x}")).collect();
    let row = |(index, row): (usize, &[u8])| {
        let digits: String = row.iter().map(|byte| format!(" {byte:02x}")).collect();
        let shown = |&byte: &u8| if byte.is_ascii_graphic() { char::from(byte) } else { '.' };
        let text: String = row.iter().map(shown).collect();
        format!("{:04x}:{digits:<48} \"{text}\"\n", index * ROW)
    };
    let rows: String = bytes.chunks(ROW).enumerate().map(row).collect();
    format!("     {columns}\n{rows}")
}

/// Lines of columns below a heading and a rule, each column as wide as nvme-cli has it, wider only where
/// something is.
pub(super) fn print_columns(columns: &[(&str, usize)], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let widest = rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
        columns[column].1.max(widest)
    };
    let widths: Vec<_> = (0..columns.len()).map(width).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join(" ").trim_end());
    };
    line(&columns.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>());
    line(&widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_dumped_as_nvme_cli_does() {
        let text = hexdump(b"0123456789abcdef\0 z");
        let rows: Vec<_> = text.lines().collect();
        assert_eq!(rows[0], "       0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f");
        assert_eq!(rows[1], "0000: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66 \"0123456789abcdef\"");
        assert_eq!(rows[2], format!("0010: 00 20 7a{} \"..z\"", " ".repeat(39)));
    }

    #[test]
    fn large_numbers_are_not_rounded() {
        assert_eq!(json_number(u64::MAX.into()), Value::from(u64::MAX));
        assert_eq!(json_number(1 << 64), Value::from("18446744073709551616"));
    }
}
