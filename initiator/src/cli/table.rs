//! JSON, and tables as nvme-cli writes them.
use serde_json::Value;

/// Prints JSON for programs, readable for people.
pub(super) fn print_json(value: &Value) {
    println!("{value:#}");
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
