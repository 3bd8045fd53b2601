//! What is known of each key of the configuration, read from where it is declared.

use super::Config;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Whether a key may change when a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// It would be another run.
    Fixed,
    /// It changes nothing of what was computed.
    Free,
    /// What it names is compared in a way of its own.
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
    /// Whether it may change when a run goes on.
    pub on_resume: OnResume,
    /// Whether each process of a run has its own, which the others need not have.
    pub own_of_rank: bool,
    /// The name that other programs give it.
    pub alias: Option<String>,
}

impl Key {
    fn of(name: &str, property: &Value) -> Self {
        let text = |what: &str| property.get(what).and_then(Value::as_str);
        let has = |wanted: &str| match property.get("type") {
            Some(Value::String(kind)) => kind == wanted,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
            _ => false,
        };
        Self {
            name: name.to_owned(),
            help: text("description").unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "),
            kind: ["boolean", "integer", "number", "array", "object"].into_iter().find(|k| has(k)).unwrap_or("string"),
            on_resume: match text("on_resume") {
                Some("free") => OnResume::Free,
                Some("compared") => OnResume::Compared,
                _ => OnResume::Fixed,
            },
            own_of_rank: text("rank") == Some("own"),
            alias: text("alias").map(str::to_owned),
        }
    }
}

/// Every top-level key, in the order in which they are declared.
pub fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(Config).to_value();
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        properties.iter().map(|(name, property)| Key::of(name, property)).collect()
    });
    &KEYS
}

/// The key of this name.
pub fn key(name: &str) -> Option<&'static Key> {
    keys().iter().find(|key| key.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_knows_what_stands_beside_its_declaration() {
        let limit = key("save_total_limit").unwrap();
        assert_eq!((limit.kind, limit.on_resume, limit.alias.as_deref()), ("integer", OnResume::Free, Some("max_ckpt_num")));
        let device = key("device").unwrap();
        assert_eq!((device.on_resume, device.own_of_rank), (OnResume::Free, true));
        let seed = key("seed").unwrap();
        assert_eq!((seed.on_resume, seed.own_of_rank, &seed.alias), (OnResume::Fixed, false, &None));
        assert_eq!(key("plugin").unwrap().on_resume, OnResume::Compared);
        // Of a type of its own, whose schema stands elsewhere.
        assert_eq!(key("report_to").unwrap().on_resume, OnResume::Free);
        assert!(keys().iter().all(|key| !key.help.is_empty()), "{:?}", keys());
        assert!(key("ranks").is_none());
    }
}
