//! Requests for completions of a prompt, by token ids.

use super::{InferenceClient, InferenceFailure, RequestTimeout, ServerKind};
use crate::config::hex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const PATH: &str = "/v1/completions";

/// Request for completions of one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// Name of the served model.
    pub model: String,
    /// Name of the adapter to compute with, if any.
    pub adapter: Option<String>,
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Number of completions.
    pub samples: usize,
    /// Sampling parameters.
    pub parameters: SamplingParameters,
    /// Salt of the prefix cache: requests with different salts share no prefix on the server.
    pub salt: String,
    /// Random numbers of the completions.
    pub random: RandomStreamId,
    /// Divisor of the logits for the returned log-probabilities, which are over the whole vocabulary. Servers other than rlhost's return
    /// those of the sampling distribution.
    pub logp_temperature: f32,
}

/// Sampling parameters, including what ends a completion.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParameters {
    /// Maximum number of tokens per completion.
    pub max_tokens: usize,
    /// Divisor of the logits.
    pub temperature: f32,
    /// Cumulative probability of the most likely tokens to sample from; 1 for all.
    pub top_p: f32,
    /// Number of most likely tokens to sample from; 0 for all.
    pub top_k: usize,
    /// Minimum probability of a token, relative to that of the most likely one; 0 for all.
    pub min_p: f32,
    /// Divisor of the positive logits of tokens that already occurred (negative ones are multiplied); 1 for none.
    pub repetition_penalty: f32,
    /// Tokens that end a completion; the model's own end tokens are ignored.
    pub ends: Vec<u32>,
    /// Texts that end a completion; they are part of it.
    pub stop: Vec<String>,
}

/// Identifies the random numbers of completions. An rlhost server samples with the same numbers as a run in its own process; other servers
/// get a seed derived from these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStreamId {
    /// Seed of the run.
    pub seed: u64,
    /// Index of the generation in the run.
    pub generation: u64,
    /// Row of the dataset.
    pub row: u64,
    /// Index of the first completion among those of the row.
    pub sample: u64,
}

/// Finished completion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// Tokens, including the end token.
    pub tokens: Vec<u32>,
    /// Log-probability of each token.
    pub logp: Vec<f32>,
    /// Whether the completion ended by itself rather than at the length limit.
    pub finished: bool,
    /// Weight versions of the tokens, if the server reports them.
    pub versions: Vec<VersionSpan>,
}

/// Span of tokens sampled by one version of the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSpan {
    /// Name of the version on the server.
    pub version: String,
    /// Index of the first token.
    pub start: usize,
    /// Index after the last token.
    pub end: usize,
}

/// Number of bits in seeds that all servers accept.
const SEED_BITS: u32 = 53;

impl SamplingParameters {
    /// Returns `top_k` as servers spell it, with -1 for all tokens.
    pub(super) fn top_k_or_all(&self) -> Value {
        if self.top_k == 0 { json!(-1) } else { json!(self.top_k) }
    }
}

impl RandomStreamId {
    /// Identifies the random numbers of a later completion of the row.
    pub(super) fn of_sample(self, offset: usize) -> Self {
        Self { sample: self.sample + offset as u64, ..self }
    }

    /// Returns a seed for servers with their own sampler (the mixing function of SplitMix64).
    pub(super) fn as_seed(self) -> u64 {
        let mixed = |x: u64| {
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        let words = [self.seed, self.generation, self.row, self.sample];
        words.into_iter().fold(0, |state, word| mixed(state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15)) >> (64 - SEED_BITS)
    }
}

impl CompletionRequest {
    /// Returns the body for the route of OpenAI's API, without the random numbers, which each server names in its own way.
    fn body(&self) -> Value {
        let parameters = &self.parameters;
        json!({
            "model": self.adapter.as_ref().unwrap_or(&self.model),
            "prompt": self.prompt,
            "n": self.samples,
            "max_tokens": parameters.max_tokens,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "top_k": parameters.top_k_or_all(),
            "min_p": parameters.min_p,
            "repetition_penalty": parameters.repetition_penalty,
            // The server may have other end tokens for the model.
            "ignore_eos": true,
            "stop_token_ids": parameters.ends,
            "stop": parameters.stop,
            "include_stop_str_in_output": true,
            "skip_special_tokens": false,
            "logprobs": 0,
            "return_token_ids": true,
            "cache_salt": self.hashed_salt(),
        })
    }

    /// Returns the salt as all servers accept it: vLLM refuses some characters, among them those of paths, and long texts.
    pub(super) fn hashed_salt(&self) -> String {
        hex(&Sha256::digest(self.salt.as_bytes()))
    }
}

impl InferenceClient {
    /// Requests completions and returns them in order.
    ///
    /// # Errors
    /// If the server does not answer in time, or returns other completions than requested.
    pub fn complete(
        &self,
        request: &CompletionRequest,
        kind: ServerKind,
        patience: RequestTimeout,
    ) -> Result<Vec<Completion>, InferenceFailure> {
        let mut body = request.body();
        match kind {
            ServerKind::Sglang => return self.complete_with_sglang(request, patience),
            ServerKind::Vllm => body["seed"] = json!(request.random.as_seed()),
            ServerKind::Rlhost => {
                let RandomStreamId { seed, generation, row, sample } = request.random;
                body["random_stream"] = json!([seed, generation, row, sample]);
                body["logp_temperature"] = json!(request.logp_temperature);
            }
        }
        let answer = self.post(PATH, &body, patience)?;
        let wrong = |detail: &str| self.foreign(PATH, detail);
        let choices = answer["choices"].as_array().ok_or_else(|| wrong("it has no choices"))?;
        if choices.len() != request.samples {
            return Err(wrong(&format!("{} choices instead of {}", choices.len(), request.samples)));
        }
        let mut all: Vec<Option<Completion>> = vec![None; request.samples];
        for choice in choices {
            let index = choice["index"].as_u64().and_then(|index| usize::try_from(index).ok());
            let place = index.and_then(|index| all.get_mut(index)).ok_or_else(|| wrong("a choice without its index"))?;
            *place = Some(completion(choice, request.parameters.max_tokens).map_err(|detail| wrong(&detail))?);
        }
        all.into_iter().map(|one| one.ok_or_else(|| wrong("two choices of one index"))).collect()
    }
}

/// What is wrong with a completion's log-probabilities.
pub(super) const NO_LOGP: &str = "log-probabilities are not numbers from -10000 to 0";

/// Returns whether a number is the log-probability of a token that was sampled, rounded as servers round.
pub(super) fn is_logp(logp: f32) -> bool {
    (-1e4..=1e-3).contains(&logp)
}

fn completion(choice: &Value, max_tokens: usize) -> Result<Completion, String> {
    let ids = choice["token_ids"].as_array().ok_or("a choice has no token_ids")?;
    let tokens: Option<Vec<u32>> = ids.iter().map(|id| id.as_u64()?.try_into().ok()).collect();
    let tokens = tokens.ok_or("token_ids are not those of tokens")?;
    let logps = choice["logprobs"]["token_logprobs"].as_array().ok_or("a choice has no logprobs.token_logprobs")?;
    let logp: Option<Vec<f32>> = logps.iter().map(|logp| Some(logp.as_f64()? as f32)).collect();
    let logp = logp.filter(|all| all.iter().all(|logp| is_logp(*logp))).ok_or(NO_LOGP)?;
    if logp.len() != tokens.len() || tokens.is_empty() || tokens.len() > max_tokens {
        return Err(format!("{} tokens with {} log-probabilities; max_tokens is {max_tokens}", tokens.len(), logp.len()));
    }
    let finished = ended_by_itself(&choice["finish_reason"])?;
    Ok(Completion { tokens, logp, finished, versions: version_spans(choice)? })
}

/// Returns whether a completion ended by itself rather than at the length limit.
pub(super) fn ended_by_itself(reason: &Value) -> Result<bool, String> {
    match reason.as_str() {
        Some("stop") => Ok(true),
        Some("length") => Ok(false),
        other => Err(format!("a completion ended by {}", other.unwrap_or("nothing"))),
    }
}

/// Parses the spans of `weight_versions`; empty if the server reports none.
pub(super) fn version_spans(value: &Value) -> Result<Vec<VersionSpan>, String> {
    let Some(spans) = value.get("weight_versions").and_then(Value::as_array) else { return Ok(Vec::new()) };
    spans.iter().map(span).collect::<Option<_>>().ok_or_else(|| "weight_versions are not spans of tokens".to_owned())
}

fn span(value: &Value) -> Option<VersionSpan> {
    let map: &Map<String, Value> = value.as_object()?;
    let place = |name: &str| map.get(name)?.as_u64()?.try_into().ok();
    Some(VersionSpan { version: map.get("version")?.as_str()?.to_owned(), start: place("start")?, end: place("end")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_has_log_probabilities_of_its_tokens() {
        let choice = |logp: Value| {
            let logprobs = json!({"token_logprobs": logp});
            json!({"token_ids": [1, 2], "logprobs": logprobs, "finish_reason": "stop"})
        };
        assert_eq!(completion(&choice(json!([-0.5, 1e-6])), 2).unwrap().logp, [-0.5, 1e-6]);
        for logp in [json!([-0.5, 5.0]), json!([-0.5, -1e30]), json!([-0.5, null]), json!([-0.5, -1e300])] {
            assert_eq!(completion(&choice(logp), 2).unwrap_err(), NO_LOGP);
        }
        assert!(completion(&choice(json!([-0.5])), 2).unwrap_err().contains("2 tokens with 1"));
        assert!(completion(&choice(json!([-0.5, -1])), 1).unwrap_err().contains("max_tokens is 1"));
    }

    #[test]
    fn every_server_accepts_the_salt_of_the_prefix_cache() {
        let parameters = SamplingParameters {
            max_tokens: 1,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            ends: Vec::new(),
            stop: Vec::new(),
        };
        let random = RandomStreamId { seed: 0, generation: 0, row: 0, sample: 0 };
        let salt = |salt: String| {
            let (model, prompt, parameters) = ("m".to_owned(), vec![1], parameters.clone());
            let request =
                CompletionRequest { model, adapter: None, prompt, samples: 1, parameters, salt, random, logp_temperature: 1.0 };
            request.body()["cache_salt"].as_str().unwrap().to_owned()
        };
        let all = ["", "/models/a@b\\c 3", "/models/a@b\\c 4", &"long/".repeat(100)].map(|text| salt(text.to_owned()));
        for (i, own) in all.iter().enumerate() {
            // What vLLM 0.32 asks of it.
            assert!((1..=128).contains(&own.len()) && own.bytes().all(|c| c.is_ascii_alphanumeric()), "{own}");
            assert!(!all[..i].contains(own));
        }
    }
}
