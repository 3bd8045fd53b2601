//! An algorithm of two: a script estimates the advantages, and a built-in algorithm has the loss that learns from them.

use crate::config::{DEFAULT_ALGORITHM, PluginLimits};
use crate::script::{self, ScriptFunction, ScriptKind};
use crate::{Error, PluginEngine, PluginSource, Result, Role, functions_of};
use serde_json::{Map, Value, json};

/// The setting that names the built-in algorithm, which is the default one if the script does not say.
const BASE: &str = "base";

/// Returns the function of a script that estimates advantages, if the script is that.
///
/// # Errors
/// If the script can't be run, or is no algorithm.
pub(super) fn estimator_of(
    engine: &PluginEngine,
    source: &PluginSource,
    limits: &PluginLimits,
) -> Result<Option<ScriptFunction>> {
    let Some(script) = source.script() else { return Ok(None) };
    let wrong = |detail| Error::Config { name: source.name().to_owned(), detail };
    let function = script::choose_function(functions_of(engine, source, limits)?, script, Role::Algorithm).map_err(wrong)?;
    Ok(Some(function).filter(|function| function.kind == ScriptKind::Advantages))
}

/// The settings of both parts.
pub(super) struct AdvantageScriptSettings {
    /// The built-in algorithm's name.
    pub base: String,
    pub of_base: Map<String, Value>,
    pub of_script: Map<String, Value>,
}

impl AdvantageScriptSettings {
    /// Divides a configuration: what the script's schema has is the script's, and the rest is the built-in algorithm's.
    pub(super) fn from_config(config: &Map<String, Value>, function: &ScriptFunction) -> Self {
        let schema: Value = serde_json::from_str(&function.settings_schema).unwrap_or_default();
        let default = schema["properties"][BASE]["default"].as_str().unwrap_or(DEFAULT_ALGORITHM);
        let base = config.get(BASE).and_then(Value::as_str).unwrap_or(default).to_owned();
        let is_own = |key: &str| schema["properties"].get(key).is_some();
        let (of_script, mut of_base): (Map<_, _>, Map<_, _>) = config.clone().into_iter().partition(|(key, _)| is_own(key));
        of_base.remove(BASE);
        Self { base, of_base, of_script }
    }
}

/// Opens the built-in algorithm whose loss is used.
///
/// # Errors
/// If there is none of that name, or it does not learn from advantages.
pub(super) fn open_base(name: &str, script: &str) -> Result<PluginSource> {
    PluginSource::open_built_in_algorithm(name).ok_or_else(|| {
        let known = "it must be a built-in algorithm that learns from advantages, such as grpo or rloo";
        Error::Config { name: script.to_owned(), detail: format!("base is {name:?}; {known}") }
    })
}

/// Returns a schema that has the settings of both, and which algorithm the base is.
pub(super) fn joint_schema(script: &str, of_base: &str, base: &str) -> String {
    let [mut joint, own]: [Value; 2] = [of_base, script].map(|text| serde_json::from_str(text).unwrap_or_default());
    let description = "The built-in algorithm whose loss learns from these advantages.";
    let mut properties = joint["properties"].as_object().cloned().unwrap_or_default();
    properties.insert(BASE.to_owned(), json!({"type": "string", "default": base, "description": description}));
    properties.extend(own["properties"].as_object().cloned().unwrap_or_default());
    joint["properties"] = Value::Object(properties);
    joint.to_string()
}
