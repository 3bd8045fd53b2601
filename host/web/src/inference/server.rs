//! Identifies a server's program and model.

use super::{InferenceClient, InferenceFailure, RequestTimeout};

const MODELS: &str = "/v1/models";

/// Program of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// `rlhost serve`.
    Rlhost,
}

impl ServerKind {
    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::Rlhost => "rlhost serve",
        }
    }
}

/// Description that a server gives of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerDescription {
    /// Program of the server.
    pub kind: ServerKind,
    /// Name of the served model.
    pub model: String,
    /// Maximum number of tokens of a prompt and its completion, if the server reports it.
    pub max_model_len: Option<usize>,
    /// Whether the server says that it computes in f32.
    pub computes_in_f32: bool,
}

impl InferenceClient {
    /// Asks the server for its program and model.
    ///
    /// # Errors
    /// If the server does not answer, or is of an unknown kind.
    pub fn describe(&self) -> Result<ServerDescription, InferenceFailure> {
        let answer = self.get(MODELS, RequestTimeout::Short)?;
        let models = answer["data"].as_array().ok_or_else(|| self.foreign(MODELS, "it lists no models"))?;
        // Adapters name their base model as parent.
        let own = models.iter().find(|model| model["parent"].is_null());
        let own = own.ok_or_else(|| self.foreign(MODELS, "it lists no model"))?;
        let name = own["id"].as_str().ok_or_else(|| self.foreign(MODELS, "its model has no id"))?;
        let kind = match own["owned_by"].as_str() {
            Some("vllm") => ServerKind::Vllm,
            Some("sglang") => ServerKind::Sglang,
            Some("rlhost") => ServerKind::Rlhost,
            other => {
                let other = crate::config::printable(other.unwrap_or("nobody"), 100);
                return Err(
                    self.foreign(MODELS, format!("its model is owned by {other}; servers are vLLM, SGLang and rlhost serve"))
                );
            }
        };
        let max_model_len = own["max_model_len"].as_u64().and_then(|length| usize::try_from(length).ok());
        let computes_in_f32 = own["dtype"].as_str() == Some("float32");
        Ok(ServerDescription { kind, model: name.to_owned(), max_model_len, computes_in_f32 })
    }

    /// Returns whether the server responds at all.
    pub fn is_alive(&self) -> bool {
        self.get("/health", RequestTimeout::Short).is_ok()
    }
}
