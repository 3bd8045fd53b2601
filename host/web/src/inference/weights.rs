//! Replaces the weights of a server that runs.

use super::{Client, Failure, Patience};
use crate::config::printable;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const INFO: &str = "/weight_info";

/// The versions of a server's weights, by its own names for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightInfo {
    /// Of the model.
    pub model: String,
    /// Of adapters, by name; empty where a server does not say.
    pub adapters: BTreeMap<String, String>,
}

impl Client {
    /// Loads an adapter under a name.
    pub fn load_adapter(&self, name: &str, folder: &Path, patience: Patience) -> Result<(), Failure> {
        let body = json!({"lora_name": name, "lora_path": folder});
        self.post("/v1/load_lora_adapter", &body, patience).map(drop)
    }

    /// Removes an adapter.
    pub fn unload_adapter(&self, name: &str) -> Result<(), Failure> {
        self.post("/v1/unload_lora_adapter", &json!({"lora_name": name}), Patience::Short).map(drop)
    }

    /// Reads all weights anew, from the model's folder. The caller pauses the server before, and resumes it.
    pub fn reload(&self, folder: &Path, patience: Patience) -> Result<(), Failure> {
        let body = json!({"method": "reload_weights", "kwargs": {"weights_path": folder}});
        self.post("/collective_rpc", &body, patience).map(drop)
    }

    /// Stops computing when all requests under way have ended.
    pub fn pause(&self, patience: Patience) -> Result<(), Failure> {
        self.post("/pause?mode=wait", &json!({}), patience).map(drop)
    }

    /// Continues after a pause.
    pub fn resume(&self) -> Result<(), Failure> {
        self.post("/resume", &json!({}), Patience::Short).map(drop)
    }

    /// Drops the prefix cache.
    pub fn reset_prefix_cache(&self) -> Result<(), Failure> {
        self.post("/reset_prefix_cache", &json!({}), Patience::Short).map(drop)
    }

    /// Gives vLLM's weights a version.
    pub fn set_weight_version(&self, version: &str) -> Result<(), Failure> {
        self.post("/update_weight_version", &json!({"new_version": version}), Patience::Short).map(drop)
    }

    /// Returns the versions of the weights.
    pub fn weight_info(&self) -> Result<WeightInfo, Failure> {
        let answer = self.get(INFO, Patience::Short)?;
        let text = |value: &Value| match value {
            Value::String(text) => printable(text, 200),
            other => printable(&other.to_string(), 200),
        };
        let model = answer.get("weight_version").ok_or_else(|| self.foreign(INFO, "it has no weight_version"))?;
        let adapters = answer.get("adapters").and_then(Value::as_object);
        let adapters = adapters.into_iter().flatten().map(|(name, version)| (name.clone(), text(version))).collect();
        Ok(WeightInfo { model: text(model), adapters })
    }
}
