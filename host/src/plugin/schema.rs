//! A plugin's configuration against its JSON Schema.

use super::{Error, Result};
use serde_json::{Map, Value};

/// Fills defaults in and validates; gives the configuration as the plugin gets it.
pub(super) fn resolve(name: &str, schema: &str, given: &Map<String, Value>) -> Result<Map<String, Value>> {
    let fail = |detail: String| Error::Config { name: name.to_owned(), detail };
    let schema: Value = serde_json::from_str(schema).map_err(|e| fail(format!("its configuration schema is not JSON: {e}")))?;
    let validator =
        jsonschema::validator_for(&schema).map_err(|e| fail(format!("its configuration schema is not a JSON Schema: {e}")))?;
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let open = schema.get("additionalProperties").is_some_and(|v| *v != Value::Bool(false));
    for key in given.keys() {
        if !properties.contains_key(key) && !open {
            return Err(fail(unknown_key(key, properties)));
        }
    }
    let mut config = Map::new();
    for (key, property) in properties {
        // An optional setting's default of null means that it is not there.
        let value = given.get(key).or_else(|| property.get("default").filter(|d| !d.is_null()));
        config.extend(value.map(|v| (key.clone(), v.clone())));
    }
    for (key, value) in given {
        config.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let whole = Value::Object(config);
    if let Some(error) = validator.iter_errors(&whole).next() {
        let at = error.instance_path().to_string();
        let key = at.trim_start_matches('/').replace('/', ".");
        // Of a choice the validator says only that none of it fits.
        let mut choices = Vec::new();
        constants(&schema["properties"][key.split('.').next().unwrap_or_default()], &schema, &mut choices);
        let said = match (error.instance().as_ref(), choices.is_empty()) {
            (given @ Value::String(text), false) => {
                let near = crate::config::nearest(text, choices.iter().map(String::as_str));
                let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                format!("{given} is not one of {}{near}", choices.join(", "))
            }
            // TOML has no null: this is what JSON makes of them.
            (Value::Null, _) => "nan and inf are no values of a setting".to_owned(),
            _ => error.to_string(),
        };
        return Err(fail(if key.is_empty() {
            format!("configuration: {said}")
        } else {
            format!("configuration key {key}: {said}")
        }));
    }
    match whole {
        Value::Object(config) => Ok(config),
        _ => Ok(Map::new()),
    }
}

/// The settings of a resolved configuration that do not stand at their defaults.
pub(super) fn beyond_defaults(schema: &str, config: &Map<String, Value>) -> Map<String, Value> {
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    let differs = |(key, value): &(&String, &Value)| schema["properties"][key.as_str()].get("default") != Some(value);
    config.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The texts that a property may be, however its schema spells that.
fn constants(property: &Value, schema: &Value, into: &mut Vec<String>) {
    into.extend(property["const"].as_str().map(str::to_owned));
    into.extend(property["enum"].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)));
    for key in ["oneOf", "anyOf", "allOf"] {
        property[key].as_array().into_iter().flatten().for_each(|inner| constants(inner, schema, into));
    }
    if let Some(name) = property["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
        constants(&schema["$defs"][name], schema, into);
    }
}

fn unknown_key(key: &str, properties: &Map<String, Value>) -> String {
    if properties.is_empty() {
        return format!("unknown configuration key {key:?}; it has no settings");
    }
    let nearest = crate::config::nearest(key, properties.keys().map(String::as_str));
    let known = properties.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match nearest {
        Some(near) => format!("unknown configuration key {key:?}; did you mean {near:?}? It has {known}"),
        None => format!("unknown configuration key {key:?}; it has {known}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SCHEMA: &str = r##"{"type": "object", "additionalProperties": false, "properties": {
        "target": {"type": "integer", "minimum": 0, "default": 20},
        "unit": {"$ref": "#/$defs/Unit", "default": "tokens"}},
        "$defs": {"Unit": {"oneOf": [{"const": "tokens"}, {"enum": ["characters"]}]}}}"##;

    fn resolved(given: Value) -> std::result::Result<Value, String> {
        let Value::Object(given) = given else { panic!("test gives an object") };
        resolve("p", SCHEMA, &given).map(Value::Object).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_filled_in() {
        assert_eq!(resolved(json!({"target": 8})), Ok(json!({"target": 8, "unit": "tokens"})));
    }

    #[test]
    fn errors_name_the_key_and_what_would_be_right() {
        let near = resolved(json!({"taget": 8})).unwrap_err();
        assert!(near.contains("taget") && near.contains("did you mean \"target\""), "{near}");
        let kind = resolved(json!({"target": "eight"})).unwrap_err();
        assert!(kind.contains("target") && kind.contains("integer"), "{kind}");
        let value = resolved(json!({"unit": "character"})).unwrap_err();
        assert!(value.contains("unit: \"character\" is not one of tokens, characters; did you mean \"characters\"?"), "{value}");
    }
}
