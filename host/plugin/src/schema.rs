//! Validates a plugin's configuration against its JSON Schema.

mod bounds;
mod effort;

pub(super) use bounds::{check, target};

use super::error::LONGEST_TEXT;
use super::{Error, Result, Role};
use crate::config::{PluginEntry, did_you_mean, printable, switched};
use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

/// Maximum memory of a compiled regular expression, in bytes.
const LARGEST_PATTERN: usize = 1 << 20;

/// Validates a configuration and fills in defaults. Returns the configuration that the plugin receives.
pub fn resolve(name: &str, schema: &str, given: &Map<String, Value>) -> Result<Map<String, Value>> {
    resolve_for(name, None, schema, given)
}

/// Validates a configuration as [`resolve`] does. For a plugin of this role, an error about a key of its table in the configuration
/// names the flag.
pub(super) fn resolve_for(
    name: &str,
    role: Option<Role>,
    schema: &str,
    given: &Map<String, Value>,
) -> Result<Map<String, Value>> {
    let fail = |detail: String| Error::Config { name: name.to_owned(), detail: printable(&detail, LONGEST_TEXT) };
    let schema: Value = serde_json::from_str(schema).map_err(|e| fail(format!("its configuration schema is not JSON: {e}")))?;
    bounds::check(&schema).map_err(|e| fail(format!("its configuration schema {e}")))?;
    // No backtracking engine, and no formats, since one of them is that of regular expressions.
    let patterns = PatternOptions::regex().size_limit(LARGEST_PATTERN).dfa_size_limit(LARGEST_PATTERN);
    let validator = jsonschema::options().with_pattern_options(patterns).should_validate_formats(false).build(&schema);
    let validator = validator.map_err(|e| fail(format!("its configuration schema is not a JSON Schema: {e}")))?;
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let open = schema.get("additionalProperties").is_some_and(|v| *v != Value::Bool(false));
    let given = &named(properties, given).map_err(&fail)?;
    if let Some((key, value)) = given.iter().find(|(key, _)| !properties.contains_key(*key) && !open) {
        let flag = role.and_then(|role| flag_of_table(name, role, key, value)).unwrap_or_default();
        return Err(fail(unknown_key(key, properties) + &flag));
    }
    let mut config = Map::new();
    for (key, property) in properties {
        // A default of null means that an optional setting is absent.
        let value = given.get(key).cloned().or_else(|| default_of(property).filter(|d| !d.is_null()));
        config.extend(value.map(|v| (key.clone(), without_nulls(&v))));
    }
    for (key, value) in given {
        config.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let mut whole = Value::Object(config);
    effort::check(&schema, &whole).map_err(|e| fail(format!("its configuration schema {e}")))?;
    for key in given.keys() {
        spell(key, &mut whole, &validator);
    }
    if let Some(error) = validator.iter_errors(&whole).next() {
        let at = error.instance_path().to_string();
        let key = at.trim_start_matches('/').replace('/', ".");
        // For a choice, the validator reports only that no variant matches.
        let mut choices = Vec::new();
        constants(&schema["properties"][key.split('.').next().unwrap_or_default()], &schema, &mut choices);
        let said = match (error.instance().as_ref(), choices.is_empty()) {
            (given @ Value::String(text), false) => {
                let meant = did_you_mean(text, choices.iter().map(String::as_str));
                let (given, choices) = (printable(&given.to_string(), SHOWN), printable(&choices.join(", "), LONGEST_TEXT));
                format!("{given} is not one of {choices}{meant}")
            }
            // TOML has no null: JSON turns NaN and infinity into null.
            (Value::Null, _) => "a setting can't be nan or inf".to_owned(),
            _ => error.to_string(),
        };
        return Err(fail(if key.is_empty() {
            format!("configuration: {said}")
        } else {
            format!("configuration key {key}: {said}")
        }));
    }
    let Value::Object(config) = whole else { return Ok(Map::new()) };
    match config.iter().find(|(_, value)| !survives_toml(value)) {
        Some((key, value)) => {
            let shown = printable(&value.to_string(), SHOWN);
            Err(fail(format!("configuration key {key}: {shown} can't be stored in a run's config.toml without changing")))
        }
        None => Ok(config),
    }
}

/// Converts a text that is invalid for its setting as Python would read it, if the setting allows the result: a boolean, a number, or none.
/// TRL's commands and files use such spellings.
fn spell(key: &str, whole: &mut Value, validator: &Validator) {
    let path = format!("/{key}");
    let fits = |whole: &Value| validator.iter_errors(whole).all(|error| error.instance_path().to_string() != path);
    let Some(Value::String(text)) = whole.get(key).cloned().filter(|_| !fits(whole)) else { return };
    let number = || text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<f64>().map(Value::from)).ok();
    for meant in switched(&text).map(Value::Bool).into_iter().chain(number()) {
        whole[key] = meant;
        if fits(whole) {
            return;
        }
    }
    let Value::Object(config) = whole else { return };
    let absent = ["none", "null"].iter().any(|word| word.eq_ignore_ascii_case(&text));
    match absent {
        true => drop(config.remove(key)),
        false => drop(config.insert(key.to_owned(), Value::String(text))),
    }
}

/// Returns the aliases of a property.
pub(super) fn aliases(property: &Value) -> impl Iterator<Item = &str> {
    property["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Returns settings under their own names, with aliases resolved.
fn named(properties: &Map<String, Value>, given: &Map<String, Value>) -> std::result::Result<Map<String, Value>, String> {
    let mut named = Map::new();
    for (key, value) in given {
        let is_alias = |(_, property): &(&String, &Value)| aliases(property).any(|alias| alias == key);
        let own = if properties.contains_key(key) { None } else { properties.iter().find(is_alias) };
        let name = own.map_or(key, |(name, _)| name);
        if named.insert(name.clone(), value.clone()).is_some_and(|other| other != *value) {
            return Err(format!("configuration key {name} is given twice, under different names and with different values"));
        }
    }
    Ok(named)
}

/// Returns the value without null members, which mean absent settings: TOML has no null.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            members.iter().filter(|(_, v)| !v.is_null()).map(|(key, v)| (key.clone(), without_nulls(v))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// Maximum number of bytes of a value that an error shows.
const SHOWN: usize = 200;

/// Returns whether a resumed run would read the value unchanged: TOML has no null and only signed 64-bit integers.
fn survives_toml(value: &Value) -> bool {
    let kept = toml::to_string(&Map::from_iter([("value".to_owned(), value.clone())])).ok();
    let read = kept.and_then(|text| text.parse::<toml::Table>().ok()).and_then(|read| serde_json::to_value(read).ok());
    read.is_some_and(|read| read["value"] == *value)
}

/// Returns the default of a property. A single-precision default appears in the schema in double precision; it is rounded back to the
/// digits it was written with: -0.1 rather than -0.10000000149011612.
pub(super) fn default_of(property: &Value) -> Option<Value> {
    let default = property.get("default")?;
    let single =
        default.as_f64().filter(|_| property["format"] == "float" && default.is_f64()).map(|whole| (whole, whole as f32));
    let exact = single.filter(|(whole, single)| f64::from(*single) == *whole);
    let written = exact.and_then(|(_, single)| single.to_string().parse::<f64>().ok());
    Some(written.map_or_else(|| default.clone(), Value::from))
}

/// Returns the settings of a resolved configuration that differ from their defaults.
pub(super) fn beyond_defaults(schema: &str, config: &Map<String, Value>) -> Map<String, Value> {
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    let differs = |(key, value): &(&String, &Value)| {
        let property = &schema["properties"][key.as_str()];
        property.get("default") != Some(value) && default_of(property).as_ref() != Some(value)
    };
    config.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Collects the strings that a property may be, in any of the forms that a schema can list them.
pub(super) fn constants(property: &Value, schema: &Value, into: &mut Vec<String>) {
    into.extend(property["const"].as_str().map(str::to_owned));
    into.extend(property["enum"].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)));
    for key in ["oneOf", "anyOf", "allOf"] {
        property[key].as_array().into_iter().flatten().for_each(|inner| constants(inner, schema, into));
    }
    if let Some(target) = property["$ref"].as_str().and_then(|to| bounds::target(schema, to)) {
        constants(target, schema, into);
    }
}

fn unknown_key(key: &str, properties: &Map<String, Value>) -> String {
    if properties.is_empty() {
        return format!("unknown configuration key {key:?}; it has no settings");
    }
    let known: Vec<&str> = properties.keys().map(String::as_str).collect();
    let meant = did_you_mean(key, known.iter().copied());
    let (key, known) = (printable(key, SHOWN), printable(&known.join(", "), LONGEST_TEXT));
    format!("unknown configuration key {key:?}; it has {known}{meant}")
}

/// Returns the flag for a key of a plugin's table that was given as a setting; `None` for other keys.
fn flag_of_table(name: &str, role: Role, key: &str, value: &Value) -> Option<String> {
    let table = match role {
        Role::Reward => "plugin",
        Role::Environment => "environment",
        // Its table has only its settings and its limits.
        Role::Algorithm => return None,
    };
    let value = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => "VALUE".to_owned(),
    };
    PluginEntry::OWN_KEYS.contains(&key).then(|| format!("; {key} is --set {table}.{name}.{key}={value}"))
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
    fn a_default_of_single_precision_has_the_digits_it_was_written_with() {
        let schema =
            json!({"properties": {"x": {"type": "number", "format": "float", "default": f64::from(-0.1f32)}}}).to_string();
        let config = resolve("p", &schema, &Map::new()).unwrap();
        assert_eq!(config["x"].to_string(), "-0.1");
        assert!(beyond_defaults(&schema, &config).is_empty());
        let before = Map::from_iter([("x".to_owned(), json!(f64::from(-0.1f32)))]);
        assert!(beyond_defaults(&schema, &before).is_empty());
        let double = json!({"format": "double", "default": f64::from(-0.1f32)});
        assert_eq!(default_of(&double), Some(json!(f64::from(-0.1f32))));
        assert_eq!(default_of(&json!({"format": "float", "default": 2})), Some(json!(2)));
    }

    #[test]
    fn a_key_of_the_plugins_table_is_named_with_its_flag() {
        let said = |role: Role, given: Value| {
            let given = given.as_object().unwrap();
            resolve_for("pv", Some(role), r#"{"properties": {}}"#, given).unwrap_err().to_string()
        };
        let unknown = |key: &str| format!("plugin pv: unknown configuration key {key:?}; it has no settings");
        let of_reward = said(Role::Reward, json!({"on_error": "previous"}));
        assert_eq!(of_reward, unknown("on_error") + "; on_error is --set plugin.pv.on_error=previous");
        let of_environment = said(Role::Environment, json!({"weight": 0.5}));
        assert_eq!(of_environment, unknown("weight") + "; weight is --set environment.pv.weight=0.5");
        assert_eq!(said(Role::Algorithm, json!({"on_error": "previous"})), unknown("on_error"));
        assert_eq!(said(Role::Reward, json!({"taget": 3})), unknown("taget"));
    }

    #[test]
    fn defaults_are_filled_in() {
        assert_eq!(resolved(json!({"target": 8})), Ok(json!({"target": 8, "unit": "tokens"})));
    }

    #[test]
    fn settings_are_also_spelled_as_in_python() {
        let schema = r#"{"additionalProperties": false, "required": ["beta"], "properties": {"mask": {"type": "boolean", "default": true},
            "scale": {"enum": ["group", "none", true, false], "default": "group"}, "beta": {"type": "number", "default": 0.1},
            "high": {"type": ["number", "null"], "default": null}, "word": {"type": "string", "default": "a"}}}"#;
        let resolved =
            |given: Value| resolve("p", schema, given.as_object().unwrap()).map(Value::Object).map_err(|e| e.to_string());
        let with = |key: &str, value: Value| {
            let mut all = json!({"mask": true, "scale": "group", "beta": 0.1, "word": "a"});
            all[key] = value;
            Ok(all)
        };
        assert_eq!(resolved(json!({"mask": "False"})), with("mask", json!(false)));
        assert_eq!(resolved(json!({"mask": "no"})), with("mask", json!(false)));
        assert_eq!(resolved(json!({"scale": "True"})), with("scale", json!(true)));
        assert_eq!(resolved(json!({"scale": "none"})), with("scale", json!("none")));
        assert_eq!(resolved(json!({"beta": ".04"})), with("beta", json!(0.04)));
        assert_eq!(resolved(json!({"high": "None"})), with("word", json!("a")));
        assert_eq!(resolved(json!({"word": "True"})), with("word", json!("True")));
        for (given, said) in
            [(json!({"mask": "maybe"}), "\"maybe\" is not of type"), (json!({"beta": "none"}), "\"beta\" is a required")]
        {
            assert!(resolved(given).unwrap_err().contains(said));
        }
        assert!(resolved(json!({"scale": "grup"})).unwrap_err().contains("did you mean"));
    }

    #[test]
    fn other_names_of_a_setting_mean_the_same() {
        let schema = r#"{"additionalProperties": false, "properties": {"cap": {"type": "number", "aliases": ["old_cap"]}}}"#;
        let resolved = |given: Value| resolve("p", schema, given.as_object().unwrap()).map_err(|e| e.to_string());
        for given in [json!({"old_cap": 2.0}), json!({"cap": 2.0}), json!({"cap": 2.0, "old_cap": 2.0})] {
            assert_eq!(resolved(given).map(Value::Object), Ok(json!({"cap": 2.0})));
        }
        assert!(resolved(json!({"cap": 2.0, "old_cap": 3.0})).unwrap_err().contains("cap is given twice"));
    }

    #[test]
    fn values_that_a_resumed_run_would_read_otherwise_are_refused() {
        let resolve = |schema: Value| resolve("p", &schema.to_string(), &Map::new()).map_err(|e| e.to_string());
        let of = |default: Value| resolve(json!({"properties": {"x": {"default": default}}}));
        for fine in [json!(1), json!(0.1), json!("a\nb"), json!([1, "two"]), json!({"a": {"b": [true]}}), json!(i64::MAX)] {
            assert!(of(fine.clone()).is_ok(), "{fine}");
        }
        assert_eq!(of(json!({"a": null, "b": 1})).unwrap()["x"], json!({"b": 1}));
        for lost in [json!(u64::MAX), json!([1, null])] {
            assert!(of(lost.clone()).unwrap_err().contains("configuration key x"), "{lost}");
        }
    }

    #[test]
    fn a_reference_is_followed_to_where_it_was_checked() {
        let schema = r##"{"properties": {"x": {"$ref": "#/$defs/a~1b", "default": 5}},
            "$defs": {"a/b": {"type": "string"}, "a~1b": {"$ref": "#/$defs/a~1b"}}}"##;
        let said = resolve("p", schema, &Map::new()).unwrap_err().to_string();
        assert!(said.contains("configuration key x"), "{said}");
    }

    #[test]
    fn a_schema_that_would_take_for_ever_or_much_memory_is_refused() {
        let refused = |schema: Value| resolve("p", &schema.to_string(), &Map::new()).unwrap_err().to_string();
        let deep = (0..30).fold(json!(0), |inner, _| json!([inner]));
        let both = json!([{"$ref": "#/$defs/R"}, {"$ref": "#/$defs/R"}]);
        let schema =
            json!({"properties": {"a": {"$ref": "#/$defs/R", "default": deep}}, "$defs": {"R": {"items": {"allOf": both}}}});
        let said = refused(schema);
        assert!(said.contains("steps to check"), "{said}");
        // Some 10 MiB each.
        let of =
            |i: usize| (format!("a{i}"), json!({"type": "string", "default": "x", "pattern": format!("\\p{{L}}{{200}}a{i}")}));
        let said = refused(json!({"properties": (0..60).map(of).collect::<Map<_, _>>()}));
        assert!(said.contains("not a JSON Schema"), "{said}");
        let fine = json!({"properties": {"a": {"default": "run-1", "pattern": "^[a-z]+-[0-9]{1,64}$"}}});
        assert!(resolve("p", &fine.to_string(), &Map::new()).is_ok());
    }

    #[test]
    fn what_a_schema_says_is_visible_in_errors() {
        let schema = r#"{"properties": {"\u001b[2J\r\n INFO saved": {"type": "string", "default": 1}}}"#;
        let said = resolve("p", schema, &Map::new()).unwrap_err().to_string();
        assert!(!said.chars().any(crate::config::is_hidden) && said.contains("\\u{1b}[2J"), "{said}");
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
