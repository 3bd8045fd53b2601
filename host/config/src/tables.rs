//! The keys of a configuration's tables, read from their declarations.

use super::{AgentEntry, HttpLimits, PluginEntry, PluginLimits};
use serde_json::{Map, Value};

/// A key of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableKey {
    /// Name of the key.
    pub name: String,
    /// Help text of the key.
    pub help: String,
    /// Default of the key; `None` if the key is required, or is unset by default.
    pub default: Option<Value>,
}

/// Returns the tables of plugin and agent entries, each with its title.
pub fn entry_tables() -> [(&'static str, Vec<TableKey>); 4] {
    [
        ("plugin", keys_of(&schemars::schema_for!(PluginEntry).to_value())),
        ("plugin.NAME.limits", keys_of(&schemars::schema_for!(PluginLimits).to_value())),
        ("plugin.NAME.http", keys_of(&schemars::schema_for!(HttpLimits).to_value())),
        ("agent", keys_of(&schemars::schema_for!(AgentEntry).to_value())),
    ]
}

/// Returns the keys of a table from its schema.
fn keys_of(schema: &Value) -> Vec<TableKey> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let key = |(name, property): (&String, &Value)| TableKey {
        name: name.clone(),
        help: property["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "),
        // The defaults of a nested table are listed with its own keys.
        default: property.get("default").filter(|default| !default.is_null() && !default.is_object()).cloned(),
    };
    properties.iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entrys_keys_have_help_and_defaults() {
        let tables = entry_tables();
        let key = |table: usize, name: &str| tables[table].1.iter().find(|key| key.name == name).unwrap().clone();
        assert_eq!((key(0, "weight").default, key(0, "path").default), (Some(Value::from(1.0)), None));
        assert!(PluginEntry::OWN_KEYS.iter().all(|name| key(0, name).name == **name));
        assert_eq!(key(1, "memory_mb").default, Some(Value::from(PluginLimits::default().memory_mb)));
        assert_eq!(key(2, "retries").default, Some(Value::from(HttpLimits::default().retries)));
        assert!(tables.iter().all(|(_, keys)| keys.len() > 5 && keys.iter().all(|key| !key.help.is_empty())), "{tables:?}");
    }
}
