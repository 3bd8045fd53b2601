//! The settings of a plugin, as fields of a form.

use super::schema::{constants, default_of};
use super::settings::{DEEPEST, Setting, has_type, info_of, inner, settings_in};
use super::{PluginEngine, PluginSource, Result};
use crate::config::PluginLimits;
use serde::Serialize;
use serde_json::Value;

/// A setting, as a field of a form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FormField {
    /// Name of the setting.
    pub name: String,
    /// Meaning of the setting.
    pub help: String,
    /// Kind of value that can be entered.
    #[serde(flatten)]
    pub kind: FormFieldKind,
    /// Default value; null if there is none.
    pub default: Value,
    /// Whether the setting may have no value, that is, be null.
    pub is_optional: bool,
}

/// The kind of value that can be entered into a field.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FormFieldKind {
    /// True or false.
    Switch,
    /// A number.
    Number {
        /// Whether the number is an integer.
        is_whole: bool,
        /// Minimum value.
        minimum: Option<f64>,
        /// Maximum value.
        maximum: Option<f64>,
    },
    /// One of several texts.
    Choice {
        /// Texts to choose from.
        choices: Vec<String>,
    },
    /// A text.
    Text,
    /// Any value, as JSON.
    Json,
}

/// Returns the settings of a plugin as fields of a form. Compiles the plugin and calls it for its description, within the limits.
///
/// # Errors
/// If the plugin can't be loaded.
pub fn fields_of(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<Vec<FormField>> {
    let schema = info_of(engine, source, limits)?.config_schema;
    Ok(fields_in(&serde_json::from_str(&schema).unwrap_or_default()))
}

/// Reads the fields of a schema; leaves out settings whose name can't be a flag.
fn fields_in(schema: &Value) -> Vec<FormField> {
    settings_in(schema).into_iter().map(|setting| FormField::from_setting(setting, schema)).collect()
}

impl FormField {
    fn from_setting(Setting { name, help, .. }: Setting, schema: &Value) -> Self {
        let property = &schema["properties"][&name];
        let default = default_of(property).unwrap_or_default();
        let is_optional = has_type(property, "null", schema, DEEPEST);
        Self { name, help, kind: FormFieldKind::from_property(property, schema), default, is_optional }
    }
}

impl FormFieldKind {
    fn from_property(property: &Value, schema: &Value) -> Self {
        let is = |kind: &str| has_type(property, kind, schema, DEEPEST);
        let mut choices = Vec::new();
        constants(property, schema, &mut choices);
        choices.dedup();
        let (is_text, is_number) = (is("string") || !choices.is_empty(), is("number") || is("integer"));
        match (is_text, is_number, is("boolean"), is("array") || is("object")) {
            (false, false, true, false) => Self::Switch,
            (false, true, false, false) => Self::Number {
                is_whole: !is("number"),
                minimum: bound(property, schema, "minimum", DEEPEST),
                maximum: bound(property, schema, "maximum", DEEPEST),
            },
            (true, false, false, false) if !choices.is_empty() => Self::Choice { choices },
            (true, false, false, false) => Self::Text,
            _ => Self::Json,
        }
    }
}

/// Returns a number's bound, which may be in a definition or in a choice.
fn bound(property: &Value, schema: &Value, key: &str, depth: usize) -> Option<f64> {
    let own = property[key].as_f64();
    let of_inner = || inner(property, schema).find_map(|inner| bound(inner, schema, key, depth - 1));
    own.or_else(|| if depth > 0 { of_inner() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_tells_what_can_be_entered() {
        let schema = json!({"properties": {
            "target": {"type": "integer", "minimum": 0, "maximum": 64, "default": 20, "description": "The length."},
            "beta": {"anyOf": [{"$ref": "#/$defs/Small"}, {"type": "null"}]},
            "unit": {"$ref": "#/$defs/Unit", "default": "tokens"},
            "on": {"type": "boolean", "default": true},
            "word": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "number"}, {"const": "none"}], "default": 0.5},
            "many": {"type": "array", "items": {"type": "string"}}},
            "$defs": {"Unit": {"enum": ["tokens", "characters"]}, "Small": {"type": "number", "maximum": 1.0}}});
        let fields = fields_in(&schema);
        let of = |name: &str| fields.iter().find(|field| field.name == name).map(|field| field.kind.clone()).unwrap();
        let number = |is_whole, minimum, maximum| FormFieldKind::Number { is_whole, minimum, maximum };
        assert_eq!(of("target"), number(true, Some(0.0), Some(64.0)));
        assert_eq!(of("beta"), number(false, None, Some(1.0)));
        assert_eq!(of("unit"), FormFieldKind::Choice { choices: vec!["tokens".into(), "characters".into()] });
        assert_eq!((of("on"), of("word"), of("many")), (FormFieldKind::Switch, FormFieldKind::Text, FormFieldKind::Json));
        assert_eq!(of("either"), FormFieldKind::Json);
        let optional: Vec<&str> = fields.iter().filter(|field| field.is_optional).map(|field| field.name.as_str()).collect();
        assert_eq!(optional, ["beta", "word"]);
        let target = serde_json::to_value(&fields[0]).unwrap();
        assert_eq!((&target["kind"], &target["is_whole"], &target["default"]), (&json!("number"), &json!(true), &json!(20)));
        assert!(fields_in(&json!({"properties": {"a": {"$ref": "#/properties/a"}}})).is_empty());
    }
}
