//! Resolves the spellings of keys and their values.

use super::agents::agent_entries;
use super::values::{environment_entries, not_finite, plugin_entries, reported_to, reworded, spelled, unlimited, unsupported};
use super::{ConfigKey, RunConfig, did_you_mean, keys, printable};
use toml::{Table, Value};

/// Returns the canonical name of a key that is spelled this way in rlhost or in another program.
pub(super) fn own_name(spelled: &str) -> Option<&'static str> {
    let is = |key: &&ConfigKey| key.name == spelled || key.aliases.iter().any(|alias| alias == spelled);
    keys().iter().find(is).map(|key| key.name.as_str())
}

/// Converts a value to the type of its key, if it has another spelling; the error says what is wrong with it.
pub(super) fn coerce_value(own: &str, value: Value) -> std::result::Result<Value, String> {
    let kind = keys().iter().find(|key| key.name == own).map_or("", |key| key.kind);
    let value = match own {
        "plugin" => plugin_entries(own, value)?,
        "environment" => environment_entries(own, value)?,
        "agent" => agent_entries(own, value)?,
        "report_to" => reported_to(value),
        _ => spelled(kind, value),
    };
    let value = unlimited(own, value);
    if let Some((_, number)) = not_finite(&value).filter(|(at, _)| at.is_empty()) {
        return Err(format!("is {number}; it must be a finite number"));
    }
    if let Some(why) = unsupported(own, &value) {
        return Err(why);
    }
    match Table::from_iter([(own.to_owned(), value.clone())]).try_into::<RunConfig>() {
        Ok(_) => Ok(value),
        // Numbers within it are refused together, by their path.
        Err(_) if not_finite(&value).is_some() => Ok(value),
        Err(e) => Err(reworded(e.message())),
    }
}

/// Returns the error about an unknown key, with the nearest known name; the algorithm's `settings` are candidates too.
pub(super) fn unknown(key: &str, settings: &[String]) -> String {
    let names = keys().iter().map(|key| key.name.as_str()).chain(settings.iter().map(String::as_str));
    let near = did_you_mean(key, names);
    let key = printable(key, LONGEST_KEY);
    if near.is_empty() {
        return format!("unknown key `{key}`, neither rlhost's nor the algorithm's; `rlhost train --help` lists all keys");
    }
    format!("unknown key `{key}`{near}")
}

/// Maximum length of a key, in bytes, and maximum number of its parts.
pub(super) const LONGEST_KEY: usize = 512;
