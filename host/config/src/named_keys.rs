//! The keys of a configuration that are set explicitly.

use super::PluginEntry;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// The keys that are set in files, flags or `--set`; keys within tables and plugin entries follow a dot. The built-in run, for which the
/// user names neither a model nor a dataset, sets some too.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedKeys {
    by_user: BTreeSet<String>,
    by_built_in_run: BTreeSet<String>,
}

impl NamedKeys {
    /// Creates the set from the keys that the user named; all other keys of the table come from the built-in run.
    pub(super) fn new(by_user: BTreeSet<String>, all: &Table) -> Self {
        Self { by_built_in_run: in_table(all).filter(|key| !BTreeSet::contains(&by_user, key)).collect(), by_user }
    }

    /// Returns whether a key is set, so that an algorithm's default does not apply to it.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.by_user.contains(key) || self.by_built_in_run.contains(key)
    }

    /// Returns the keys that the user named.
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.by_user.iter()
    }
}

impl<const N: usize> From<[String; N]> for NamedKeys {
    /// Creates the set from keys that the user named.
    fn from(by_user: [String; N]) -> Self {
        Self { by_user: by_user.into(), by_built_in_run: BTreeSet::new() }
    }
}

/// Returns the keys of a table.
pub(super) fn in_table(table: &Table) -> impl Iterator<Item = String> {
    let entry = |key: &str, entry: &Table| {
        let path = entry.get("path").and_then(Value::as_str).unwrap_or_default();
        let named = entry.get("name").and_then(Value::as_str).map(str::to_owned);
        let name = named.unwrap_or_else(|| PluginEntry::new(path.to_owned()).name().to_owned());
        entry.keys().map(|inner| format!("{key}.{name}.{inner}")).collect::<Vec<_>>()
    };
    table.iter().flat_map(move |(key, value)| {
        let inner = value.as_table().into_iter().flat_map(Table::keys).map(|inner| format!("{key}.{inner}"));
        let entries = value.as_array().into_iter().flatten().filter_map(Value::as_table).flat_map(|of| entry(key, of));
        std::iter::once(key.clone()).chain(inner).chain(entries).collect::<Vec<_>>()
    })
}
