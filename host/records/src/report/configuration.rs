//! The lines of config.toml, and which keys the user set.

use super::ReportSource;
use crate::config::PluginEntry;
use crate::run::EventKind;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Keys of entries with one table each, such as `[[plugin]]`.
const ENTRIES: [&str; 2] = ["plugin", "environment"];

/// A line of config.toml.
#[derive(Debug, PartialEq, Serialize)]
pub struct ConfigLine {
    /// Text of the line.
    pub text: String,
    /// Whether the user set the line's key.
    pub set: bool,
}

/// The configuration as shown.
#[derive(Debug, PartialEq, Serialize)]
pub struct ConfigListing {
    /// All lines.
    pub lines: Vec<ConfigLine>,
    /// Lines that the user set, under the headers of their tables. Empty if the run's events don't record this.
    pub own: Vec<String>,
    /// Dotted keys of these lines.
    pub keys: Vec<String>,
}

/// Returns the names of a run's plugins or environments, in the order of the configuration.
pub(super) fn names(run: &ReportSource, entries: &str) -> Vec<String> {
    let entries = run.settings.get(entries).and_then(toml::Value::as_array).into_iter().flatten();
    entries.map(entry_name).collect()
}

/// Returns the name of a plugin or environment, which is the prefix of its keys.
pub(super) fn entry_name(entry: &toml::Value) -> String {
    let text = |key: &str| entry.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let mut own = PluginEntry::new(text("path").unwrap_or_default());
    own.name = text("name");
    own.model = entry.get("model").and_then(toml::Value::as_bool) == Some(true);
    own.name().to_owned()
}

/// Returns the configuration of a run.
pub(super) fn configuration(run: &ReportSource) -> ConfigListing {
    let set = set(run);
    let mut names = ENTRIES.map(|entries| names(run, entries).into_iter());
    // The path of the line's table, the path of the enclosing entry, and the headers that `own` still lacks.
    let (mut table, mut entry, mut headers) = (String::new(), String::new(), Vec::<String>::new());
    let (mut lines, mut own, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for text in run.config.lines() {
        if let Some(header) = text.strip_prefix('[') {
            let key = header.trim_matches(['[', ']', ' ']);
            let place = ENTRIES.iter().position(|entries| *entries == key).filter(|_| header.starts_with('['));
            if let Some(place) = place {
                entry = format!("{key}.{}", names[place].next().unwrap_or_default());
                (table, headers) = (entry.clone(), vec![text.to_owned()]);
            } else {
                let inner = ENTRIES.iter().find_map(|entries| key.strip_prefix(entries)?.strip_prefix('.'));
                table = inner.map_or_else(|| key.to_owned(), |inner| format!("{entry}.{inner}"));
                // An entry's own header stays, since one of its tables may contain a key that was set.
                headers.truncate(if inner.is_some() { 1 } else { 0 });
                headers.push(text.to_owned());
            }
            lines.push(ConfigLine { text: text.to_owned(), set: false });
            continue;
        }
        let key = text.split_once(" = ").map(|(key, _)| key).filter(|key| is_set(&set, &table, key));
        if let Some(key) = key {
            own.append(&mut headers);
            own.push(text.to_owned());
            keys.push(if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") });
        }
        lines.push(ConfigLine { text: text.to_owned(), set: key.is_some() });
    }
    ConfigListing { lines, own, keys }
}

/// Returns the keys that the user set, at the start or later.
fn set(run: &ReportSource) -> BTreeSet<&str> {
    let begun = run.story.beginnings();
    let keys = begun.flat_map(|event| {
        // A resumed run has all keys from the checkpoint's file, which the user did not set.
        let set = event.fields.get("set").filter(|_| event.kind == Some(EventKind::Started));
        let set = set.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let changed = event.fields.get("changed").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.as_str());
        set.chain(changed)
    });
    keys.collect()
}

/// Returns whether a table's key was set: by itself, with the whole table, or because every entry requires it.
fn is_set(set: &BTreeSet<&str>, table: &str, key: &str) -> bool {
    if table.is_empty() {
        return set.contains(key);
    }
    let is_entry_of = |entries: &&&str| table.strip_prefix(**entries).is_some_and(|rest| rest.starts_with('.'));
    let entries = ENTRIES.iter().find(is_entry_of);
    let as_whole = table.contains('.') && set.contains(table);
    let is_told = |entries: &str| {
        set.iter().any(|key| key.strip_prefix(entries).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
    };
    as_whole
        || set.contains(format!("{table}.{key}").as_str())
        || key == "path" && entries.is_some_and(|entries| is_told(entries))
}
