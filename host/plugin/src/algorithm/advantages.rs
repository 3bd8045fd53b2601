//! Algorithms of two parts: a script estimates advantages, and a built-in algorithm has the loss that uses them.

use crate::config::{DEFAULT_ALGORITHM, PluginLimits};
use crate::script::{self, ScriptFunction, ScriptKind};
use crate::{Error, PluginEngine, PluginSource, Result, Role, functions_of};
use serde_json::{Map, Value, json};

/// Setting that names the built-in algorithm. Without it, the base is the default algorithm.
const BASE: &str = "base";

/// Returns the advantage estimator of a script. Returns `None` if the script's function is not one.
///
/// # Errors
/// If the script can't be run or is not an algorithm.
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

/// Settings of both parts.
pub(super) struct AdvantageScriptSettings {
    /// Name of the built-in algorithm.
    pub base: String,
    pub of_base: Map<String, Value>,
    pub of_script: Map<String, Value>,
}

impl AdvantageScriptSettings {
    /// Splits a configuration: settings in the script's schema belong to the script, and the rest to the built-in algorithm.
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

/// Opens the built-in algorithm that has the loss.
///
/// # Errors
/// If there is no built-in algorithm of that name, or it does not use advantages.
pub(super) fn open_base(name: &str, script: &str) -> Result<PluginSource> {
    PluginSource::open_built_in_algorithm(name).ok_or_else(|| {
        let known = "it must be a built-in algorithm that learns from advantages, such as grpo or rloo";
        Error::Config { name: script.to_owned(), detail: format!("base is {name:?}; {known}") }
    })
}

/// Returns a schema with the settings of both parts and the name of the base.
pub(super) fn joint_schema(script: &str, of_base: &str, base: &str) -> String {
    let [mut joint, own]: [Value; 2] = [of_base, script].map(|text| serde_json::from_str(text).unwrap_or_default());
    let description = "The built-in algorithm whose loss learns from these advantages.";
    let mut properties = joint["properties"].as_object().cloned().unwrap_or_default();
    properties.insert(BASE.to_owned(), json!({"type": "string", "default": base, "description": description}));
    properties.extend(own["properties"].as_object().cloned().unwrap_or_default());
    joint["properties"] = Value::Object(properties);
    joint.to_string()
}
