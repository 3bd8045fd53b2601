//! `/inference/v1/generate`: tokens in, tokens out, as in vLLM.

use super::app::App;
use super::choice::{CompletionChoice, usage};
use super::completions::MOST_ALTERNATIVES;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::logprobs;
use super::reply::Reply;
use super::sampling::{SamplingFields, random};
use crate::engine::EngineRequest;
use serde_json::{Value, json};
use std::sync::Arc;

/// Parsed request for `/inference/v1/generate`.
pub(super) struct GenerateRequest {
    id: String,
    sampling: SamplingFields,
    requests: Vec<EngineRequest>,
    logprobs: bool,
    prompt_logprobs: bool,
}

impl GenerateRequest {
    /// Parses a request.
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self> {
        let model = app.model_of(&mut fields)?;
        let tokens = fields.ids("token_ids")?.ok_or_else(|| ApiError::field("token_ids", "is missing"))?;
        let parameters = fields.object("sampling_params")?.unwrap_or_default();
        let mut parameters = Fields::from_object(parameters, "sampling_params.");
        let sampling = SamplingFields::take(&mut parameters)?;
        let logprobs = parameters.count("logprobs", MOST_ALTERNATIVES)?;
        let prompt_logprobs = parameters.count("prompt_logprobs", MOST_ALTERNATIVES)?;
        parameters.ignore(&["output_kind", "structured_outputs", "extra_args"]);
        parameters.finish()?;
        let (salt, id) = (app.salt(&mut fields)?, fields.text("request_id")?);
        fields.only("stream", &[json!(false)])?;
        fields.only("output_mode", &[json!("tokens")])?;
        fields.only("priority", &[json!(0)])?;
        fields.only("return_token_ids", &[json!(true), json!(false)])?;
        fields.finish()?;
        // Without a limit, a completion may fill the rest of the context, as in vLLM.
        let room = app.max_model_len().saturating_sub(tokens.len()).max(1);
        let max_tokens = sampling.max_tokens.unwrap_or(room);
        let mut request = sampling.request(tokens.into(), &app.ends, &app.tokenizer, max_tokens);
        (request.scoring.alternatives, request.salt) = (logprobs.max(prompt_logprobs), salt);
        request.adapter = app.adapter(&model)?;
        request.scoring.scores_prompt = prompt_logprobs.is_some();
        let requests = sampling.random.samples(sampling.n).map(|random| EngineRequest { random, ..request.clone() }).collect();
        let id = id.unwrap_or_else(|| format!("gen-{:016x}", random()));
        Ok(Self { id, sampling, requests, logprobs: logprobs.is_some(), prompt_logprobs: prompt_logprobs.is_some() })
    }

    /// Starts the completions and returns the finished response.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let prompt = Arc::clone(&self.requests[0].tokens);
        let mut choices = app.start(self.requests, &self.sampling)?;
        for choice in &mut choices {
            choice.complete().await?;
        }
        let written = choices.iter().map(|choice: &CompletionChoice| {
            json!({
                "index": choice.index, "token_ids": choice.ids(), "finish_reason": choice.finish, "stop_reason": choice.stopped,
                "logprobs": self.logprobs.then(|| logprobs::by_id(&choice.tokens)),
                "weight_versions": choice.weight_versions(),
            })
        });
        let written: Vec<Value> = written.collect();
        let scored = self.prompt_logprobs.then(|| logprobs::of_prompt(&app.tokenizer, &choices[0].scored)).transpose()?;
        Ok(Reply::json(json!({
            "request_id": self.id, "choices": written, "prompt_token_ids": &prompt[..], "prompt_logprobs": scored,
            "usage": usage(prompt.len(), &choices),
        })))
    }
}
