//! Replaces the weights of a server that runs.

use super::{InferenceClient, InferenceFailure, RequestTimeout};
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

impl InferenceClient {
    /// Loads an adapter under a name.
    pub fn load_adapter(&self, name: &str, folder: &Path, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        let body = json!({"lora_name": name, "lora_path": folder});
        self.post("/v1/load_lora_adapter", &body, patience).map(drop)
    }

    /// Removes an adapter.
    pub fn unload_adapter(&self, name: &str) -> Result<(), InferenceFailure> {
        self.post("/v1/unload_lora_adapter", &json!({"lora_name": name}), RequestTimeout::Short).map(drop)
    }

    /// Reads all weights anew, from the model's folder. The caller pauses the server before, and resumes it.
    pub fn reload(&self, folder: &Path, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        let body = json!({"method": "reload_weights", "kwargs": {"weights_path": folder}});
        self.post("/collective_rpc", &body, patience).map(drop)
    }

    /// Stops computing when all requests under way have ended.
    pub fn pause(&self, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        self.post("/pause?mode=wait", &json!({}), patience).map(drop)
    }

    /// Continues after a pause.
    pub fn resume(&self) -> Result<(), InferenceFailure> {
        self.post("/resume", &json!({}), RequestTimeout::Short).map(drop)
    }

    /// Drops the prefix cache.
    pub fn reset_prefix_cache(&self) -> Result<(), InferenceFailure> {
        self.post("/reset_prefix_cache", &json!({}), RequestTimeout::Short).map(drop)
    }

    /// Gives vLLM's weights a version.
    pub fn set_weight_version(&self, version: &str) -> Result<(), InferenceFailure> {
        self.post("/update_weight_version", &json!({"new_version": version}), RequestTimeout::Short).map(drop)
    }

    /// Returns the versions of the weights.
    pub fn weight_info(&self) -> Result<WeightInfo, InferenceFailure> {
        let answer = self.get(INFO, RequestTimeout::Short)?;
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
