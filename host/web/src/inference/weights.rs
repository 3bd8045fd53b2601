//! Replaces the weights of a running server.

use super::{InferenceClient, InferenceFailure, RequestTimeout, ServerKind};
use crate::config::printable;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

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
    ///
    /// # Errors
    /// If the server can't load it.
    pub fn load_adapter(
        &self,
        kind: ServerKind,
        name: &str,
        folder: &Path,
        patience: RequestTimeout,
    ) -> Result<(), InferenceFailure> {
        let path = match kind {
            ServerKind::Vllm | ServerKind::Rlhost => "/v1/load_lora_adapter",
            ServerKind::Sglang => "/load_lora_adapter",
        };
        self.post(path, &json!({"lora_name": name, "lora_path": folder}), patience).map(drop)
    }

    /// Removes an adapter.
    ///
    /// # Errors
    /// If the server does not have it.
    pub fn unload_adapter(&self, kind: ServerKind, name: &str) -> Result<(), InferenceFailure> {
        let path = match kind {
            ServerKind::Vllm | ServerKind::Rlhost => "/v1/unload_lora_adapter",
            ServerKind::Sglang => "/unload_lora_adapter",
        };
        self.post(path, &json!({"lora_name": name}), RequestTimeout::Short).map(drop)
    }

    /// Replaces all weights by those in a folder, once all requests in progress have ended, and drops the prefix cache. Returns the server's
    /// name of the new version, which is `version` where the server takes names.
    ///
    /// # Errors
    /// If the server can't load them.
    pub fn replace_weights(
        &self,
        kind: ServerKind,
        folder: &Path,
        version: &str,
        patience: RequestTimeout,
    ) -> Result<String, InferenceFailure> {
        match kind {
            ServerKind::Sglang => self.update_sglang(folder, version, patience)?,
            ServerKind::Vllm => self.reload_paused(folder, Some(version), patience)?,
            ServerKind::Rlhost => self.reload_paused(folder, None, patience)?,
        }
        Ok(self.weight_info(kind)?.model)
    }

    /// Returns the checksum of each tensor of the model; `None` if the server does not report any.
    ///
    /// # Errors
    /// If the server can't be reached, or answers something else.
    pub fn tensor_checksums(&self, patience: RequestTimeout) -> Result<Option<BTreeMap<String, String>>, InferenceFailure> {
        const PATH: &str = "/weight_checker";
        let answer = match self.post(PATH, &json!({"action": "checksum"}), patience) {
            Ok(answer) => answer,
            // It does not let its weights be updated, or they are quantized.
            Err(InferenceFailure::Refused { status: 400 | 403 | 404, .. }) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let sums = answer["checksums"].as_object().ok_or_else(|| self.foreign(PATH, "it has no checksums"))?;
        let text = |(name, sum): (&String, &Value)| Some((name.clone(), sum.as_str()?.to_owned()));
        Ok(Some(sums.iter().filter_map(text).collect()))
    }

    /// Reloads the weights by vLLM's routes while the server is paused, and names the version if the server does not do so by itself.
    fn reload_paused(&self, folder: &Path, version: Option<&str>, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        self.post("/pause?mode=wait", &json!({}), patience)?;
        let body = json!({"method": "reload_weights", "kwargs": {"weights_path": folder}});
        let loaded = self.post("/collective_rpc", &body, patience);
        let loaded = loaded.and_then(|_| self.post("/reset_prefix_cache", &json!({}), RequestTimeout::Short));
        let loaded = loaded.and_then(|answer| match version {
            Some(version) => self.post("/update_weight_version", &json!({"new_version": version}), RequestTimeout::Short),
            None => Ok(answer),
        });
        // Other clients may use the server, too.
        self.post("/resume", &json!({}), RequestTimeout::Short)?;
        loaded.map(drop)
    }

    /// Returns the weight versions.
    ///
    /// # Errors
    /// If the server does not report them.
    pub fn weight_info(&self, kind: ServerKind) -> Result<WeightInfo, InferenceFailure> {
        let path = if kind == ServerKind::Sglang { "/model_info" } else { "/weight_info" };
        let answer = self.get(path, RequestTimeout::Short)?;
        let text = |value: &Value| match value {
            Value::String(text) => printable(text, 200),
            other => printable(&other.to_string(), 200),
        };
        let model = answer.get("weight_version").ok_or_else(|| self.foreign(path, "it has no weight_version"))?;
        let adapters = answer.get("adapters").and_then(Value::as_object);
        let adapters = adapters.into_iter().flatten().map(|(name, version)| (name.clone(), text(version))).collect();
        Ok(WeightInfo { model: text(model), adapters })
    }
}
