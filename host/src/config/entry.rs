//! A reward plugin in the configuration.

use super::{Grants, HttpLimits, Limits, OnError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A reward plugin of the run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginEntry {
    /// Path of the plugin, or the file name of an embedded one.
    pub path: String,
    /// Weight of its rewards in the sum.
    #[serde(default = "one")]
    pub weight: f64,
    /// The plugin's own settings.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// What to do if it fails: fail (save and end the run) or unscorable (give its rows no score).
    #[serde(default)]
    pub on_error: OnError,
    /// Its resource limits.
    #[serde(default)]
    pub limits: Limits,
    /// Servers that it may send requests to, as in ["judge.internal:8000"].
    #[serde(default, deserialize_with = "super::grants::one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Secrets that are put into the headers of its requests, as in { JUDGE_KEY = "env:JUDGE_KEY" }.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Limits on its requests.
    #[serde(default, skip_serializing_if = "HttpLimits::is_default")]
    pub http: HttpLimits,
}

fn one() -> f64 {
    1.0
}

impl PluginEntry {
    /// Creates an entry with default settings.
    pub fn new(path: String) -> Self {
        let (limits, http) = (Limits::default(), HttpLimits::default());
        let (config, on_error) = (Map::new(), OnError::Fail);
        Self { path, weight: 1.0, config, on_error, limits, hosts: Vec::new(), secrets: BTreeMap::new(), http }
    }

    /// Returns what it is granted.
    pub fn grants(&self) -> Grants {
        Grants { hosts: self.hosts.clone(), secrets: self.secrets.clone(), http: self.http.clone() }
    }

    /// Returns the name used in metrics and in `--set plugin.NAME...`: the file name without its extension.
    pub fn name(&self) -> &str {
        let file = self.path.rsplit(['/', '\\']).next().unwrap_or(&self.path);
        file.strip_suffix(".wasm").unwrap_or(file)
    }
}
