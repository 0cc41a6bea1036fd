//! Numbers and tables as nvme-cli writes them.
use serde_json::Value;

/// Prints JSON for programs, readable for people.
pub(super) fn print_json(value: &Value) {
    println!("{value:#}");
}

/// A size with a decimal prefix: `  1.07  GB`.
pub(super) fn decimal_size(bytes: u64) -> String {
    let (number, prefix) = scaled(bytes, 1000);
    format!("{number:6.2} {prefix:>2}B")
}

/// A size with a binary prefix and without a fraction: `  4 KiB`.
pub(super) fn binary_size(bytes: u64) -> String {
    let (number, prefix) = scaled(bytes, 1024);
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}i") };
    format!("{number:3.0} {prefix:>2}B")
}

fn scaled(bytes: u64, step: u64) -> (f64, &'static str) {
    let prefixes = ["", if step == 1000 { "k" } else { "K" }, "M", "G", "T", "P", "E"];
    let mut unit = 1;
    let mut index = 0;
    while bytes / unit >= step && index + 1 < prefixes.len() {
        unit *= step;
        index += 1;
    }
    (bytes as f64 / unit as f64, prefixes[index])
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
    fn sizes_are_written_as_nvme_cli_does() {
        assert_eq!(decimal_size(1 << 30), "  1.07 GB".replace(" GB", "  GB"));
        assert_eq!(decimal_size(512), "512.00   B");
        assert_eq!(binary_size(4096), "  4 KiB");
        assert_eq!(binary_size(512), "512   B");
        assert_eq!(decimal_size(u64::MAX), " 18.45  EB");
    }
}
