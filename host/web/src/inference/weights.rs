//! Replaces the weights of a running server.

use super::{InferenceClient, InferenceFailure, RequestTimeout};
use crate::config::printable;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const INFO: &str = "/weight_info";

/// Weight versions of a server, by the server's own names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightInfo {
    /// Version of the model's weights.
    pub model: String,
    /// Versions of adapters by name; empty if the server does not report them.
    pub adapters: BTreeMap<String, String>,
}

impl InferenceClient {
    /// Loads an adapter under this name.
    pub fn load_adapter(&self, name: &str, folder: &Path, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        let body = json!({"lora_name": name, "lora_path": folder});
        self.post("/v1/load_lora_adapter", &body, patience).map(drop)
    }

    /// Removes an adapter.
    pub fn unload_adapter(&self, name: &str) -> Result<(), InferenceFailure> {
        self.post("/v1/unload_lora_adapter", &json!({"lora_name": name}), RequestTimeout::Short).map(drop)
    }

    /// Reloads all weights from the model's folder. The caller pauses the server before and resumes it afterwards.
    pub fn reload(&self, folder: &Path, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        let body = json!({"method": "reload_weights", "kwargs": {"weights_path": folder}});
        self.post("/collective_rpc", &body, patience).map(drop)
    }

    /// Pauses the server once all requests in progress have ended.
    pub fn pause(&self, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        self.post("/pause?mode=wait", &json!({}), patience).map(drop)
    }

    /// Resumes the server after a pause.
    pub fn resume(&self) -> Result<(), InferenceFailure> {
        self.post("/resume", &json!({}), RequestTimeout::Short).map(drop)
    }

    /// Drops the prefix cache.
    pub fn reset_prefix_cache(&self) -> Result<(), InferenceFailure> {
        self.post("/reset_prefix_cache", &json!({}), RequestTimeout::Short).map(drop)
    }

    /// Sets the version name of vLLM's weights.
    pub fn set_weight_version(&self, version: &str) -> Result<(), InferenceFailure> {
        self.post("/update_weight_version", &json!({"new_version": version}), RequestTimeout::Short).map(drop)
    }

    /// Returns the weight versions.
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
