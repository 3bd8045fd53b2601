//! Metadata of each configuration key, read from its declaration.

use super::Config;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Whether a key may change when a run resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// It may not: the results would change.
    Fixed,
    /// It may: the results do not depend on it.
    Free,
    /// What it names is compared separately.
    Compared,
}

/// A top-level key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// What it means.
    pub help: String,
    /// The JSON type of its value.
    pub kind: &'static str,
    /// Whether it is a list of numbers.
    pub of_numbers: bool,
    /// Whether it may change when a run resumes.
    pub on_resume: OnResume,
    /// Whether each process of a run may have its own value.
    pub own_of_rank: bool,
    /// Its names in other programs.
    pub aliases: Vec<String>,
    /// The value of its flag when none is given.
    pub bare: Option<String>,
}

impl Key {
    fn of(name: &str, property: &Value) -> Self {
        let text = |what: &str| property.get(what).and_then(Value::as_str);
        let words = |what: &str| {
            let words = property.get(what).and_then(Value::as_array).into_iter().flatten();
            words.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let has = |wanted: &str| match property.get("type") {
            Some(Value::String(kind)) => kind == wanted,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
            _ => false,
        };
        Self {
            name: name.to_owned(),
            help: text("description").unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "),
            kind: ["boolean", "integer", "number", "array", "object"].into_iter().find(|k| has(k)).unwrap_or("string"),
            of_numbers: property
                .pointer("/items/type")
                .and_then(Value::as_str)
                .is_some_and(|of| ["integer", "number"].contains(&of)),
            on_resume: match text("on_resume") {
                Some("free") => OnResume::Free,
                Some("compared") => OnResume::Compared,
                _ => OnResume::Fixed,
            },
            own_of_rank: text("rank") == Some("own"),
            aliases: words("aliases"),
            bare: text("bare").map(str::to_owned),
        }
    }
}

/// Returns every top-level key, in order of declaration.
pub fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(Config).to_value();
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        properties.iter().map(|(name, property)| Key::of(name, property)).collect()
    });
    &KEYS
}

/// Returns the key of this name.
pub fn key(name: &str) -> Option<&'static Key> {
    keys().iter().find(|key| key.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_states_the_default_of_every_scalar_key() {
        let defaults = serde_json::to_value(Config::default()).unwrap();
        for Key { name, help, .. } in keys() {
            let default = &defaults[name.as_str()];
            if default.is_null() || default.is_array() || default.is_object() {
                continue;
            }
            let (_, rest) = help.split_once("[default: ").unwrap_or_else(|| panic!("{name}: {help}"));
            let text = rest.split([']', ',']).next().unwrap();
            let stated = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            assert!(super::super::same(&stated, default), "{name}: {help}");
        }
    }

    #[test]
    fn a_key_knows_what_stands_beside_its_declaration() {
        let limit = key("save_total_limit").unwrap();
        assert_eq!(
            (limit.kind, limit.on_resume, &limit.aliases[..]),
            ("integer", OnResume::Free, &["max_ckpt_num".to_owned()][..])
        );
        let device = key("device").unwrap();
        assert_eq!((device.on_resume, device.own_of_rank), (OnResume::Free, true));
        let seed = key("seed").unwrap();
        assert_eq!((seed.on_resume, seed.own_of_rank, seed.aliases.len()), (OnResume::Fixed, false, 0));
        assert_eq!(key("plugin").unwrap().on_resume, OnResume::Compared);
        // Of a type of its own, whose schema stands elsewhere.
        assert_eq!(key("report_to").unwrap().on_resume, OnResume::Free);
        assert!(keys().iter().all(|key| !key.help.is_empty()), "{:?}", keys());
    }
}
