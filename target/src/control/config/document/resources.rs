//! Limits of what is taken on, in a file: the table `limits`.
use toml::de::DeValue;

use super::Table;
use crate::control::config::{ConfigError, resources};
use crate::limits::{Limits, Resource};

pub(super) fn limits(top: &Table<'_>) -> Result<Limits, ConfigError> {
    let mut limits = Limits::default();
    let Some(value) = top.get("limits") else { return Ok(limits) };
    let expected = "a table: write [limits]";
    let entries = value.get_ref().as_table().ok_or_else(|| top.wrong("limits", value, expected))?;
    let table = Table::new(top.file, entries, value.span(), &Resource::ALL.map(Resource::key))?;
    for resource in Resource::ALL {
        let key = resource.key();
        let Some(value) = table.get(key) else { continue };
        let set = match value.get_ref() {
            DeValue::String(text) if resource.is_bytes() => resources::set(&mut limits, resource, text),
            DeValue::Integer(_) => {
                let number = table.integer(key, value, "a whole number")?;
                resources::set(&mut limits, resource, &number.to_string())
            }
            _ if resource.is_bytes() => return Err(table.wrong(key, value, "a size such as \"64MiB\"")),
            _ => return Err(table.wrong(key, value, "a whole number")),
        };
        set.map_err(|error| table.bad(key, value.span(), error))?;
    }
    Ok(limits)
}
