//! The settings of a plugin, as described by its configuration schema.

use super::error::LONGEST_TEXT;
use super::hints::Hints;
use super::loaded_plugin::{LoadedPlugin, PluginInfo};
use super::schema::{aliases, check, constants, default_of, target};
use super::{AlgorithmPlugin, PluginEngine, PluginOutline, PluginSource, Result, Role};
use crate::config::{PluginLimits, printable};
use serde_json::{Map, Value};

/// A setting of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the setting.
    pub name: String,
    /// Meaning of the setting, its values if they are few, and its default.
    pub help: String,
    /// Number of values that the setting takes.
    pub arity: SettingArity,
    /// Aliases of the setting.
    pub aliases: Vec<String>,
    /// Allowed values, if they are few. Values that a shell would interpret are left out.
    pub choices: Vec<String>,
}

/// The number of values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingArity {
    /// True or false.
    Switch,
    /// One value.
    One,
    /// A list of values.
    Several,
    /// One value, or a list.
    OneOrSeveral,
}

/// Returns the settings of a plugin. Compiles it and calls it for its description, within the limits.
///
/// # Errors
/// If the plugin can't be loaded.
pub fn settings_of(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<Vec<Setting>> {
    let schema = info_of(engine, source, limits)?.config_schema;
    Ok(settings_in(&serde_json::from_str(&schema).unwrap_or_default()))
}

/// Returns a plugin's hints to the host. Compiles it and calls it for its description, within the limits.
///
/// # Errors
/// If the plugin can't be loaded.
pub fn hints_of(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<Hints> {
    Ok(info_of(engine, source, limits)?.hints)
}

/// Returns a plugin's description of itself without a configuration; for a script that estimates advantages, together with its base.
pub(super) fn info_of(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<PluginInfo> {
    let role = PluginOutline::read(engine, source, limits)?.role(source)?;
    if role == Role::Algorithm && source.script().is_some() {
        return Ok(AlgorithmPlugin::load(engine, source, &Map::new(), limits, 0)?.info().clone());
    }
    Ok(LoadedPlugin::load_unconfigured(engine, source, role, limits, 0)?.info)
}

/// Reads the settings of a schema; leaves out those whose name can't be a flag.
pub fn settings_in(schema: &Value) -> Vec<Setting> {
    // A schema without an end is rejected when the plugin is loaded.
    if check(schema).is_err() {
        return Vec::new();
    }
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let named = properties.iter().filter(|(name, _)| is_name(name));
    named.map(|(name, property)| Setting::from_property(name, property, schema)).collect()
}

/// Returns whether a name can be a flag.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= LONGEST_NAME
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Maximum length of a setting's name, in bytes.
const LONGEST_NAME: usize = 64;

impl Setting {
    fn from_property(name: &str, property: &Value, schema: &Value) -> Self {
        let mut choices = Vec::new();
        constants(property, schema, &mut choices);
        choices.dedup();
        let mut help = words(property["description"].as_str().unwrap_or_default());
        if !choices.is_empty() {
            help = format!("{}: {}", help.trim_end_matches('.'), choices.join(", "));
        }
        let default = match default_of(property) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(other) => Some(other.to_string()),
        };
        help = format!("{} [default: {}]", help.trim_end_matches('.'), default.as_deref().unwrap_or("none"));
        let is = |kind: &str| has_type(property, kind, schema, DEEPEST);
        let is_one = ["string", "number", "integer"].into_iter().any(is);
        let takes = match (is("array"), is_one) {
            (true, true) => SettingArity::OneOrSeveral,
            (true, false) => SettingArity::Several,
            (false, false) if is("boolean") => SettingArity::Switch,
            (false, _) => SettingArity::One,
        };
        let aliases = aliases(property).filter(|alias| is_name(alias)).map(str::to_owned).collect();
        choices.retain(|choice| is_plain_word(choice));
        Self { name: name.to_owned(), help: printable(help.trim(), LONGEST_TEXT), arity: takes, aliases, choices }
    }
}

/// Returns whether a shell takes a value literally.
fn is_plain_word(value: &str) -> bool {
    !value.starts_with('-') && value.chars().all(|c| c.is_ascii_alphanumeric() || "_-.+".contains(c))
}

/// Joins the words of a text on one line.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Maximum depth to which references and choices are followed.
pub(super) const DEEPEST: usize = 8;

/// Returns whether values of this JSON type are allowed, directly or through a choice.
pub(super) fn has_type(property: &Value, kind: &str, schema: &Value, depth: usize) -> bool {
    let own = match &property["type"] {
        Value::String(one) => one == kind,
        Value::Array(several) => several.iter().any(|one| one == kind),
        _ => false,
    };
    own || depth > 0 && inner(property, schema).any(|inner| has_type(inner, kind, schema, depth - 1))
}

/// Returns the other descriptions of a property's values: its choices, and the definition that it refers to.
pub(super) fn inner<'a>(property: &'a Value, schema: &'a Value) -> impl Iterator<Item = &'a Value> {
    let choices = ["oneOf", "anyOf", "allOf"].into_iter().flat_map(|key| property[key].as_array().into_iter().flatten());
    choices.chain(property["$ref"].as_str().and_then(|to| target(schema, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(schema: &str) -> Vec<Setting> {
        settings_in(&serde_json::from_str(schema).unwrap_or_default())
    }

    #[test]
    fn a_schema_tells_what_flags_take_and_mean() {
        let schema = r##"{"properties": {
            "beta": {"type": "number", "default": 0.1, "description": "How strongly\n the policy is tied."},
            "loss_type": {"$ref": "#/$defs/Losses", "default": "sigmoid", "description": "The loss."},
            "free": {"type": ["boolean", "null"], "description": "No reference.", "aliases": ["liberty", "--evil"]},
            "Evil name": {"type": "string"}, "\u001b": {"type": "string"}},
            "$defs": {"Losses": {"anyOf": [{"$ref": "#/$defs/Loss"}, {"type": "array", "items": {"$ref": "#/$defs/Loss"}}]},
                "Loss": {"oneOf": [{"type": "string", "const": "sigmoid"}, {"type": "string", "const": "hinge"}]}}}"##;
        let settings = read(schema);
        let told: Vec<_> = settings.iter().map(|s| (&s.name[..], &s.help[..], s.arity)).collect();
        assert_eq!(
            told,
            [
                ("beta", "How strongly the policy is tied [default: 0.1]", SettingArity::One),
                ("loss_type", "The loss: sigmoid, hinge [default: sigmoid]", SettingArity::OneOrSeveral),
                ("free", "No reference [default: none]", SettingArity::Switch),
            ]
        );
        assert_eq!(settings[2].aliases, ["liberty"]);
        assert_eq!(
            (&settings[0].choices[..], &settings[1].choices[..]),
            (&[][..], &["sigmoid".to_owned(), "hinge".to_owned()][..])
        );
        let hostile = r#"{"properties": {"a": {"enum": ["one", "$(reboot)", "a b", "--set", "two-2"]}}}"#;
        assert_eq!(read(hostile)[0].choices, ["one", "two-2"]);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let looping = r##"{"properties": {"a": {"$ref": "#/properties/a"}}}"##;
        assert!(read(looping).is_empty());
        assert!(read("no JSON").is_empty());
    }
}
