//! `--set KEY=VALUE`: parses an assignment once, for all code that needs its key, and applies it.

use super::keys::{ConfigKey, TableShape as Kind, key, keys};
use super::spelling::LONGEST_KEY;
use super::spelling::{coerce_value, own_name, unknown};
use super::values::{insert, not_finite, reworded, scalar};
use super::{Error, PluginEntry, Result, RunConfig, printable};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

const DEEPEST_KEY: usize = 16;

/// Maximum length of a `--set` argument in an error message, in bytes.
const LONGEST_SET: usize = 512;

/// One `KEY=VALUE`.
#[derive(Clone, Debug)]
pub struct KeyAssignment {
    /// The key as given, because names of rewards and environments in it may have dots and dashes.
    raw_key: String,
    /// The parts of the key, with underscores.
    path: Vec<String>,
    text: String,
}

impl KeyAssignment {
    /// Parses the argument of `--set`.
    ///
    /// # Errors
    /// If it has no `=`, or its key is too long or has too many parts.
    pub fn parse(set: &str) -> Result<Self> {
        let invalid = |detail: String| Error::Invalid { place: format!("--set {}", printable(set, LONGEST_SET)), detail };
        let (key, text) = set.split_once('=').ok_or_else(|| invalid("expected KEY=VALUE".into()))?;
        if key.len() > LONGEST_KEY || key.split('.').count() > DEEPEST_KEY {
            return Err(invalid(format!("a key has at most {LONGEST_KEY} bytes and {DEEPEST_KEY} parts")));
        }
        let given = key.trim().to_owned();
        let path = given.split('.').map(|part| part.trim().replace('-', "_")).collect();
        Ok(Self { raw_key: given, path, text: text.to_owned() })
    }

    /// Parses several arguments.
    ///
    /// # Errors
    /// Those of [`KeyAssignment::parse`], for the first argument that fails.
    pub fn parse_all<'a>(sets: impl IntoIterator<Item = &'a String>) -> Result<Vec<Self>> {
        sets.into_iter().map(|set| Self::parse(set)).collect()
    }

    /// Returns the key of rlhost that the assignment sets, completely or in part.
    pub fn key(&self) -> Option<&'static str> {
        own_name(&self.path[0])
    }

    /// Returns whether the assignment sets this key completely. The parts of a path are separated by dots.
    pub fn sets(&self, key: &str) -> bool {
        self.canonical().iter().map(String::as_str).eq(key.split('.'))
    }

    /// Returns the value that the assignment gives a key, directly or within a table. Names of rewards and environments in the key are
    /// compared exactly, because a similar name may belong to another.
    pub fn value_for(&self, key: &str) -> Option<Value> {
        let of_entry = ["plugin.", "environment."].iter().any(|table| key.starts_with(table));
        let spelled = if of_entry { self.raw_key.clone() } else { self.canonical().join(".") };
        let rest = key.strip_prefix(&spelled)?;
        if rest.is_empty() {
            return Some(self.value());
        }
        let mut value = self.value();
        for part in rest.strip_prefix('.')?.split('.') {
            value = value.as_table_mut()?.remove(part)?;
        }
        Some(value)
    }

    /// Returns the parts of the key, with underscores. Aliases are kept, because a plugin's setting may have the name of another program's
    /// key.
    pub fn path(&self) -> &[String] {
        &self.path
    }

    /// Returns the parts of the key, with rlhost's canonical name.
    pub fn canonical(&self) -> Vec<String> {
        let mut path = self.path.clone();
        if let Some(own) = self.key() {
            own.clone_into(&mut path[0]);
        }
        path
    }

    /// Returns the value: TOML or JSON if it is either, otherwise a string.
    pub fn value(&self) -> Value {
        scalar(&self.text)
    }

    /// Returns the value as text, without quotes around it.
    pub fn text(&self) -> String {
        match self.value() {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// Returns the configuration with this value; `plugin.NAME.KEY` is a key of the reward with this name. Keys that rlhost does not have
    /// are the algorithm's `settings`.
    pub(super) fn apply(&self, config: RunConfig, settings: &[String]) -> Result<RunConfig> {
        let place = || format!("--set {}", printable(&format!("{}={}", self.raw_key, self.text), LONGEST_SET));
        self.applied(config, settings).map_err(|detail| Error::Invalid { place: place(), detail })
    }

    fn applied(&self, config: RunConfig, settings: &[String]) -> std::result::Result<RunConfig, String> {
        let value = self.value();
        if let Some((_, number)) = not_finite(&value) {
            return Err(format!("is {number}; it must be a finite number (put text in quotes)"));
        }
        let path = self.canonical();
        match &path[..] {
            [first, _, _, ..] if first == "plugin" => return set_of_plugin(config, &self.raw_key, value),
            [first, _, ..] if first == "environment" => return set_of_environment(config, &self.raw_key, value),
            [first, _, ..] if first == "agent" => return set_of_agent(config, &self.raw_key, value),
            [first, _, ..] if key(first).is_none_or(|key| key.table != Some(Kind::Single)) => {
                let name = |key: &ConfigKey| match key.table? {
                    Kind::Single | Kind::SingletonList => Some(key.name.clone()),
                    Kind::ByName => Some(format!("{}.NAME", key.name)),
                };
                let tables: Vec<String> = keys().iter().filter_map(name).collect();
                return Err(format!("no table is named `{first}`; the tables are {}", tables.join(", ")));
            }
            _ => {}
        }
        let mut table = Table::try_from(&config).map_err(|e| e.to_string())?;
        match (self.key(), &path[..]) {
            (Some(own), [_]) => drop(table.insert(own.to_owned(), coerce_value(own, value)?)),
            (Some(_), path) => insert(&mut table, path, value),
            (None, [key]) if settings.contains(key) => insert(&mut table, &["loss".to_owned(), key.clone()], value),
            (None, path) => return Err(unknown(&path[0], settings)),
        }
        table.try_into().map_err(|e: toml::de::Error| reworded(e.message()))
    }
}

/// Applies `plugin.NAME.KEY=VALUE`.
fn set_of_plugin(mut config: RunConfig, path: &str, value: Value) -> std::result::Result<RunConfig, String> {
    let below = path.strip_prefix("plugin.").unwrap_or(path);
    match named(&mut config.plugin, PluginEntry::name, below) {
        Some((entry, keys)) => set_in(entry, keys, value)?,
        None => return Err(no_such("reward plugin", config.plugin.iter().map(PluginEntry::name), below)),
    }
    Ok(config)
}

/// Applies `environment.KEY=VALUE`, or `environment.NAME.KEY=VALUE`, which is needed if there are several.
fn set_of_environment(mut config: RunConfig, path: &str, value: Value) -> std::result::Result<RunConfig, String> {
    let below = path.strip_prefix("environment.").unwrap_or(path);
    if let Some((entry, keys)) = named(&mut config.environment, PluginEntry::name, below) {
        set_in(entry, keys, value)?;
    } else if let [entry] = &mut config.environment[..] {
        set_in(entry, below, value)?;
    } else {
        return Err(no_such("environment", config.environment.iter().map(PluginEntry::name), below));
    }
    Ok(config)
}

/// Applies `agent.KEY=VALUE`, or `agent.NAME.KEY=VALUE`, which is needed if there are several.
fn set_of_agent(mut config: RunConfig, path: &str, value: Value) -> std::result::Result<RunConfig, String> {
    let below = path.split_once('.').map_or(path, |(_, below)| below);
    if config.agent.is_empty() {
        return Err("the run has no agent; name one with agent=COMMAND".into());
    }
    if let Some((entry, keys)) = named(&mut config.agent, |entry| &entry.name, below) {
        set_key(entry, &parts_of(keys), value)?;
    } else if let [entry] = &mut config.agent[..] {
        set_key(entry, &parts_of(below), value)?;
    } else if !below.contains('.') {
        let names = config.agent.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!("the run has several agents ({names}), whose keys are set as in agent.NAME.timeout_s"));
    } else {
        return Err(no_such("agent", config.agent.iter().map(|entry| entry.name.as_str()), below));
    }
    Ok(config)
}

/// Returns the entry whose name a path begins with, and the rest of the path. One name may be a prefix of another.
fn named<'a, 'p, E>(entries: &'a mut [E], name: fn(&E) -> &str, path: &'p str) -> Option<(&'a mut E, &'p str)> {
    let named = entries.iter_mut().filter_map(|entry| keys_of(name(entry), path).map(|keys| (entry, keys)));
    named.max_by_key(|(entry, _)| name(entry).len())
}

/// Returns the rest of a path that begins with a name. The name may contain dots, and may be quoted, as in TOML.
fn keys_of<'p>(name: &str, path: &'p str) -> Option<&'p str> {
    let below = |quote: &str| path.strip_prefix(quote)?.strip_prefix(name)?.strip_prefix(quote)?.strip_prefix('.');
    ["", "\"", "'"].into_iter().find_map(below)
}

fn no_such<'a>(what: &str, names: impl Iterator<Item = &'a str>, path: &str) -> String {
    let names: Vec<&str> = names.collect();
    let wanted = path.split('.').next().unwrap_or_default();
    match names.is_empty() {
        true => format!("no {what} is named {wanted:?}; this run has none"),
        false => format!("no {what} is named {wanted:?}; this run has {}", names.join(", ")),
    }
}

/// Returns the parts of a path of keys, with underscores.
fn parts_of(path: &str) -> Vec<String> {
    path.split('.').map(|part| part.replace('-', "_")).collect()
}

/// Sets a key of a plugin's entry.
fn set_in(entry: &mut PluginEntry, keys: &str, value: Value) -> std::result::Result<(), String> {
    let keys = parts_of(keys);
    // A plugin whose path changes keeps the name in the key.
    if let ([key], Value::String(path)) = (&keys[..], &value)
        && key == "path"
    {
        entry.move_to(path.clone());
        return Ok(());
    }
    set_key(entry, &keys, value)
}

/// Sets a key of an entry.
fn set_key<E: Serialize + DeserializeOwned>(entry: &mut E, keys: &[String], value: Value) -> std::result::Result<(), String> {
    let mut table = Table::try_from(&*entry).map_err(|e| e.to_string())?;
    insert(&mut table, keys, value);
    *entry = table.try_into().map_err(|e: toml::de::Error| reworded(e.message()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overrides;

    #[test]
    fn a_key_is_the_same_however_it_is_spelled() {
        for spelled in ["output_dir=x", "output-dir=x", " output_dir =x", "output-dir='x'"] {
            let set = KeyAssignment::parse(spelled).unwrap();
            assert!(set.sets("output_dir") && set.text() == "x", "{spelled}: {set:?}");
        }
        // Another program's name of a key, which a plugin's setting may have too.
        assert_eq!(KeyAssignment::parse("max_ckpt_num=3").unwrap().path(), ["max_ckpt_num"]);
        assert_eq!(KeyAssignment::parse("max_ckpt_num=3").unwrap().key(), Some("save_total_limit"));
        assert!(KeyAssignment::parse("loss-limits.memory-mb=3").unwrap().sets("loss_limits.memory_mb"));
        assert!(!KeyAssignment::parse("loss_limits.memory_mb=3").unwrap().sets("loss_limits"));
    }

    #[test]
    fn the_last_set_wins_over_flags_and_what_is_forced_over_all() {
        let sets = ["output-dir=a", "output_dir=b", "seed=3"].map(|set| KeyAssignment::parse(set).unwrap()).to_vec();
        let mut overrides = Overrides { flags: vec![("output_dir".into(), "c".into())], sets, ..Overrides::default() };
        assert_eq!(overrides.value_of("output_dir").as_deref(), Some("b"));
        overrides.force("output_dir", "d");
        assert_eq!(overrides.value_of("output_dir").as_deref(), Some("d"));
        assert_eq!((overrides.sets.len(), overrides.value_of("seed").as_deref()), (1, Some("3")));
    }

    #[test]
    fn a_whole_key_of_an_entry_is_told_from_others() {
        let value = |set: &str, key: &str| KeyAssignment::parse(set).unwrap().value_for(key);
        let is = |set: &str| value(set, "plugin.a.b-1.hosts").is_some();
        assert!(is("plugin.a.b-1.hosts=[]"));
        // A quoted part may be another entry's name, including the quotes.
        for other in [
            "plugin.'a.b-1'.hosts=[]",
            "plugin.a.b-1.hosts.x=1",
            "plugin.a.hosts=[]",
            "environment.a.b-1.hosts=[]",
            "plugin.a.b_1.hosts=[]",
            "plugin.a.b-1.host=[]",
        ] {
            assert!(!is(other), "{other}");
        }
        assert_eq!(value("plugin.a-b.hosts=[]", "plugin.a_b.hosts"), None);
        let limits = "plugin.a.b-1.limits";
        assert_eq!(value(&format!("{limits}={{ memory_mb = 9 }}"), &format!("{limits}.memory_mb")), Some(Value::Integer(9)));
        assert_eq!(value(&format!("{limits}={{ memory_mb = 9 }}"), &format!("{limits}.output_kb")), None);
        assert_eq!(value("metrics-port=9", "metrics_port"), Some(Value::Integer(9)));
        assert_eq!(value("loss-limits.memory-mb=9", "loss_limits.memory_mb"), Some(Value::Integer(9)));
        assert_eq!(value("metrics_port=9", "metrics_port.x"), None);
    }
}
