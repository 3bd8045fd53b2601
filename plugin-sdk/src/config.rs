//! A plugin's configuration: a serde structure whose JSON Schema becomes part of the plugin's description.

use crate::Error;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A plugin's settings. Derive `Deserialize`, `Serialize` and `JsonSchema`, implement `Default`, and mark the structure
/// `#[serde(default, deny_unknown_fields)]`. Doc comments become the descriptions that `rlhost` shows.
pub trait Config: DeserializeOwned + Serialize + JsonSchema + Default + Clone + Send + 'static {}

impl<T: DeserializeOwned + Serialize + JsonSchema + Default + Clone + Send + 'static> Config for T {}

/// The settings of a plugin that has none.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoConfig {}

/// Returns the JSON Schema of `C`, each property with its default.
pub fn schema<C: Config>() -> String {
    schemars::schema_for!(C).as_value().to_string()
}

/// The default learning rate of an algorithm that sets none.
pub const LEARNING_RATE: f64 = 1e-6;

/// Keys of a run for which an algorithm has its own default. `None` keeps the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Defaults {
    /// Number of completions per prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_generations: Option<u32>,
    /// Sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Maximum length of a completion, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_completion_length: Option<u32>,
    /// Coefficient of the auxiliary loss of a mixture's router; `None` keeps the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_aux_loss_coef: Option<f64>,
    /// Which model the teacher is, if the run names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher_model_kind: Option<DefaultTeacher>,
    /// Prompt that the teacher reads in place of the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher_prompt_template: Option<&'static str>,
}

/// A teacher that is not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultTeacher {
    /// The model that the run starts with.
    Base,
    /// The policy itself.
    Live,
    /// An exponential moving average of the policy.
    Ema,
}

impl Defaults {
    /// The host's defaults for all keys.
    pub const NONE: Self = Self {
        num_generations: None,
        temperature: None,
        max_completion_length: None,
        router_aux_loss_coef: None,
        teacher_model_kind: None,
        teacher_prompt_template: None,
    };

    /// The host's defaults for all keys, with the auxiliary loss of a mixture's router turned off.
    pub const NO_AUX_LOSS: Self = Self { router_aux_loss_coef: Some(0.0), ..Self::NONE };
}

/// An upper bound that can be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum UpperBound {
    /// At most this.
    At(f64),
    /// Unbounded.
    Lifted(NoBound),
}

/// The word for no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NoBound {
    /// No bound.
    None,
}

impl UpperBound {
    /// Returns the bound, if there is one.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        match self {
            Self::At(bound) => Some(bound),
            Self::Lifted(NoBound::None) => None,
        }
    }
}

impl JsonSchema for UpperBound {
    fn schema_name() -> Cow<'static, str> {
        "UpperBound".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "number", "minimum": 0.0 }, { "const": "none" }] })
    }
}

/// How the host derives a metric from another of the same log row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// A copy of the metric with this name.
    Copy(&'static str),
    /// The growth per second of the metric with this name, rounded down.
    PerSecond(&'static str),
}

/// A metric that the host derives from another, under a name that an algorithm's users know.
pub type DerivedMetric = (&'static str, Derivation);

/// Returns derived metrics in the form that the host reads.
#[doc(hidden)]
#[must_use]
pub fn derived(metrics: &[DerivedMetric]) -> serde_json::Value {
    let rule = |derivation: Derivation| match derivation {
        Derivation::Copy(from) => serde_json::json!({ "copy": from }),
        Derivation::PerSecond(from) => serde_json::json!({ "per_second": from }),
    };
    metrics.iter().map(|(name, derivation)| ((*name).to_owned(), rule(*derivation))).collect()
}

/// Returns the schema of an algorithm's settings, with its hints to the host under the keyword `x-rlhost`.
#[doc(hidden)]
pub fn algorithm_schema<C: Config>(hints: serde_json::Value) -> String {
    let mut schema = schemars::schema_for!(C);
    schema.insert("x-rlhost".to_owned(), hints);
    schema.as_value().to_string()
}

/// Parses a configuration.
pub fn parse<C: Config>(json: &str) -> Result<C, Error> {
    serde_json::from_str(json).map_err(|e| Error::Config(e.to_string()))
}
