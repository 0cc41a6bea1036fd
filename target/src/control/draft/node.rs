//! A table of a document, whichever way it is written: under a head of its own (`[[subsystem]]`), or in braces within a list.
use toml_edit::{Array, ArrayOfTables, InlineTable, Item, RawString, Table, TableLike, Value};

use super::Entries;

pub(super) enum Node<'a> {
    Table(&'a mut Table),
    Inline(&'a mut InlineTable),
}

impl Node<'_> {
    pub(super) fn like(&mut self) -> &mut dyn TableLike {
        match self {
            Self::Table(table) => *table,
            Self::Inline(table) => *table,
        }
    }

    /// The table at a place of a list, which the reader of the same text has found there.
    pub(super) fn child(&mut self, key: &str, index: usize) -> Node<'_> {
        let item = self.like().get_mut(key);
        let found = match item {
            Some(Item::ArrayOfTables(tables)) => tables.get_mut(index).map(Node::Table),
            Some(Item::Value(Value::Array(array))) => {
                array.get_mut(index).and_then(Value::as_inline_table_mut).map(Node::Inline)
            }
            _ => None,
        };
        found.expect("what the text was read as is in it")
    }

    /// Adds a table at the end of a list, in the way the list is written.
    pub(super) fn push(&mut self, key: &str, entries: Entries) {
        let is_inline = matches!(self, Self::Inline(_));
        let inline = |entries: Entries| -> InlineTable { entries.into_iter().collect() };
        match self.like().get_mut(key) {
            Some(Item::ArrayOfTables(tables)) => tables.push(table(entries)),
            Some(Item::Value(Value::Array(array))) => add_to(array, inline(entries).into()),
            _ if is_inline => {
                let array: Array = [inline(entries)].into_iter().collect();
                self.like().insert(key, toml_edit::value(array));
            }
            _ => {
                let mut tables = ArrayOfTables::new();
                tables.push(table(entries));
                self.like().insert(key, Item::ArrayOfTables(tables));
            }
        }
    }

    /// Removes the table at a place of a list, and the list with its last one.
    pub(super) fn remove(&mut self, key: &str, index: usize) {
        let is_empty = match self.like().get_mut(key) {
            Some(Item::ArrayOfTables(tables)) => {
                tables.remove(index);
                tables.is_empty()
            }
            Some(Item::Value(Value::Array(array))) => {
                remove_from(array, index);
                array.is_empty()
            }
            _ => false,
        };
        if is_empty {
            self.like().remove(key);
        }
    }

    /// Removes those tables of a list of which `keep` says no.
    pub(super) fn retain(&mut self, key: &str, keep: impl Fn(&dyn TableLike) -> bool) {
        let doomed: Vec<usize> = match self.like().get(key) {
            Some(Item::ArrayOfTables(tables)) => {
                tables.iter().enumerate().filter(|(_, table)| !keep(*table)).map(|(at, _)| at).collect()
            }
            Some(Item::Value(Value::Array(array))) => {
                let tables = array.iter().map(Value::as_inline_table).enumerate();
                tables
                    .filter(|(_, table)| table.is_some_and(|table| !keep(table)))
                    .map(|(at, _)| at)
                    .collect()
            }
            _ => return,
        };
        for at in doomed.into_iter().rev() {
            self.remove(key, at);
        }
    }
}

fn table(entries: Entries) -> Table {
    entries.into_iter().map(|(key, value)| (key, Item::Value(value))).collect()
}

/// Has a list name these and no others. Those which it names already stay where they are, with their comments.
pub(super) fn keep_list<T: ToString>(table: &mut dyn TableLike, key: &str, names: &[T]) {
    let wanted: Vec<String> = names.iter().map(ToString::to_string).collect();
    let Some(array) = table.get_mut(key).and_then(Item::as_array_mut) else {
        table.insert(key, toml_edit::value(wanted.into_iter().collect::<Array>()));
        return;
    };
    let is_wanted = |value: &Value| value.as_str().is_some_and(|text| wanted.iter().any(|one| one == text));
    for index in (0..array.len()).rev() {
        if !array.get(index).is_some_and(is_wanted) {
            remove_from(array, index);
        }
    }
    for name in wanted {
        if !array.iter().any(|value| value.as_str() == Some(&name)) {
            add_to(array, name.into());
        }
    }
}

/// The rest of the line on which the value before stands, a comment perhaps, and what follows.
fn at_line_end(between: &str) -> (&str, &str) {
    between.find('\n').map_or(("", between), |end| between.split_at(end))
}

/// What stands between a value of a list and the comma before it.
fn prefix(value: &Value) -> &str {
    value.decor().prefix().and_then(RawString::as_str).unwrap_or_default()
}

/// Removes a value with the comment on its own line, which the reader keeps with the value after it.
fn remove_from(array: &mut Array, index: usize) {
    let removed = array.remove(index);
    let (of_the_one_before, _) = at_line_end(prefix(&removed));
    let trailing = array.trailing().as_str().unwrap_or_default().to_owned();
    match array.get_mut(index) {
        Some(next) => {
            let (_, rest) = at_line_end(prefix(next));
            let alone = index == 0 && !rest.contains('\n');
            let between = format!("{of_the_one_before}{}", if alone { "" } else { rest });
            next.decor_mut().set_prefix(between);
        }
        None => array.set_trailing(format!("{of_the_one_before}{}", at_line_end(&trailing).1)),
    }
}

/// Adds a value at the end, on a line of its own if the others are.
fn add_to(array: &mut Array, mut value: Value) {
    let first = array.get(0).map(prefix).unwrap_or_default();
    let Some((_, indent)) = first.rsplit_once('\n') else { return array.push(value) };
    let indent = indent.to_owned();
    let trailing = array.trailing().as_str().unwrap_or_default().to_owned();
    let (of_the_one_before, rest) = at_line_end(&trailing);
    value.decor_mut().set_prefix(format!("{of_the_one_before}\n{indent}"));
    array.push_formatted(value);
    array.set_trailing(if rest.is_empty() { "\n" } else { rest });
    array.set_trailing_comma(true);
}
