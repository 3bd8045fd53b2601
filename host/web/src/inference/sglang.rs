//! SGLang's own routes: completions by token ids, and new weights (protocol of SGLang 0.5.23).

use super::completion::{Completion, CompletionRequest, NO_LOGP, ended_by_itself, is_logp, version_spans};
use super::scoring::{TokenScore, likeliest};
use super::{InferenceClient, InferenceFailure, RequestTimeout};
use serde_json::{Value, json};
use std::path::Path;

const GENERATE: &str = "/generate";
const UPDATE: &str = "/update_weights_from_disk";

impl InferenceClient {
    /// Requests completions. Each sample is a prompt of its own, since the samples of one prompt would share a seed.
    pub(super) fn complete_with_sglang(
        &self,
        request: &CompletionRequest,
        patience: RequestTimeout,
    ) -> Result<Vec<Completion>, InferenceFailure> {
        let answer = self.post(GENERATE, &body(request), patience)?;
        let wrong = |detail: &str| self.foreign(GENERATE, detail);
        let all = answer.as_array().ok_or_else(|| wrong("it is not a list of completions"))?;
        if all.len() != request.samples {
            return Err(wrong(&format!("{} completions instead of {}", all.len(), request.samples)));
        }
        all.iter().map(|one| completion(one, request.parameters.max_tokens).map_err(|detail| wrong(&detail))).collect()
    }

    /// Requests the log-probability of each token but the first, with this number of the likeliest tokens in its place.
    pub(super) fn score_with_sglang(
        &self,
        tokens: &[u32],
        likely: usize,
        patience: RequestTimeout,
    ) -> Result<Vec<TokenScore>, InferenceFailure> {
        let mut body = json!({
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": true,
            "logprob_start_len": 0,
            "stream": false,
        });
        if likely > 0 {
            body["top_logprobs_num"] = json!(likely);
        }
        let answer = self.post(GENERATE, &body, patience)?;
        scored(&answer["meta_info"], tokens, likely).map_err(|detail| self.foreign(GENERATE, detail))
    }

    /// Replaces all weights. The server waits for requests in progress and empties its prefix cache.
    pub(super) fn update_sglang(&self, folder: &Path, version: &str, patience: RequestTimeout) -> Result<(), InferenceFailure> {
        let body = json!({"model_path": folder, "weight_version": version, "flush_cache": true});
        let answer = self.post(UPDATE, &body, patience)?;
        match answer["success"].as_bool() {
            Some(true) => Ok(()),
            _ => Err(self.foreign(UPDATE, format!("the weights were not loaded: {}", answer["message"]))),
        }
    }
}

fn body(request: &CompletionRequest) -> Value {
    let parameters = &request.parameters;
    let sampling = |sample: usize| {
        let random = request.random.of_sample(sample);
        json!({
            "max_new_tokens": parameters.max_tokens,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "top_k": parameters.top_k_or_all(),
            "min_p": parameters.min_p,
            "repetition_penalty": parameters.repetition_penalty,
            // The server may have other end tokens for the model.
            "ignore_eos": true,
            "stop_token_ids": parameters.ends,
            "stop": parameters.stop,
            "no_stop_trim": true,
            "skip_special_tokens": false,
            // Has an effect with `--enable-deterministic-inference`; a 32-bit number there.
            "sampling_seed": random.as_seed() & 0x7fff_ffff,
        })
    };
    let mut body = json!({
        "input_ids": vec![&request.prompt; request.samples],
        "sampling_params": (0..request.samples).map(sampling).collect::<Vec<Value>>(),
        "return_logprob": true,
        "extra_key": request.hashed_salt(),
        "stream": false,
    });
    if let Some(adapter) = &request.adapter {
        body["lora_path"] = json!(adapter);
    }
    body
}

/// Reads a log-probability and a token for each token but the first, whose log-probability is null, and lists of the same of the
/// likeliest tokens.
fn scored(info: &Value, tokens: &[u32], likely: usize) -> Result<Vec<TokenScore>, String> {
    let of_tokens = |name: &str| -> Result<&Vec<Value>, String> {
        let entries = info[name].as_array().ok_or_else(|| format!("it has no {name}"))?;
        if entries.len() == tokens.len() {
            Ok(entries)
        } else {
            Err(format!("{} {name} of {} tokens", entries.len(), tokens.len()))
        }
    };
    let own = of_tokens("input_token_logprobs")?;
    let tops = if likely == 0 { None } else { Some(of_tokens("input_top_logprobs")?) };
    let token = |place: usize| {
        let lacks = || format!("input_token_logprobs lack token {}", tokens[place]);
        let (_, logp) = token_with_logp(&own[place]).filter(|(id, _)| *id == tokens[place]).ok_or_else(lacks)?;
        let Some(tops) = tops else { return Ok(TokenScore { logp, likely: Vec::new() }) };
        let pairs = tops[place].as_array().and_then(|all| all.iter().map(token_with_logp).collect::<Option<Vec<_>>>());
        let pairs = pairs.ok_or("input_top_logprobs are not lists of numbers and tokens")?;
        Ok(TokenScore { logp, likely: likeliest(pairs, likely)? })
    };
    (1..tokens.len()).map(token).collect()
}

/// Reads a log-probability and a token.
fn token_with_logp(entry: &Value) -> Option<(u32, f32)> {
    let logp = entry.get(0)?.as_f64()? as f32;
    Some((entry.get(1)?.as_u64()?.try_into().ok()?, logp)).filter(|(_, logp)| logp.is_finite())
}

/// Parses a completion. Its tokens are those with log-probabilities: `output_ids` may lack the one that ended it.
fn completion(value: &Value, max_tokens: usize) -> Result<Completion, String> {
    let info = &value["meta_info"];
    let logprobs = info["output_token_logprobs"].as_array().ok_or("a completion has no output_token_logprobs")?;
    let pairs: Option<Vec<(u32, f32)>> = logprobs.iter().map(token_with_logp).collect();
    let (tokens, logp): (Vec<u32>, Vec<f32>) =
        pairs.ok_or("output_token_logprobs are not pairs of numbers and tokens")?.into_iter().unzip();
    if !logp.iter().all(|logp| is_logp(*logp)) {
        return Err(NO_LOGP.to_owned());
    }
    if tokens.is_empty() || tokens.len() > max_tokens {
        return Err(format!("{} tokens; max_new_tokens is {max_tokens}", tokens.len()));
    }
    let finished = ended_by_itself(&info["finish_reason"]["type"])?;
    Ok(Completion { tokens, logp, finished, versions: version_spans(info)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_texts_tokens_have_their_log_probabilities_and_the_likeliest_ones() {
        let info = json!({
            "input_token_logprobs": [[null, 1, null], [-0.5, 7, null], [-2.0, 3, null]],
            "input_top_logprobs": [null, [[-0.1, 9, null], [-0.5, 7, null]], [[-0.25, 4, null], [-1.0, 5, null]]],
        });
        let scored_info = |info: &Value, likely| scored(info, &[1, 7, 3], likely);
        let logp = |all: Vec<TokenScore>| all.into_iter().map(|token| token.logp).collect::<Vec<f32>>();
        assert_eq!(scored_info(&info, 0).map(logp), Ok(vec![-0.5, -2.0]));
        let both = scored_info(&info, 2).unwrap();
        assert_eq!((&both[1].likely[..], both[0].likely[1]), (&[(4, -0.25), (5, -1.0)][..], (7, -0.5)));
        let mut other = info.clone();
        other["input_token_logprobs"][1][1] = json!(8);
        for (info, likely, part) in [
            (other, 0, "lack token 7"),
            (info.clone(), 3, "2 of the 3 likeliest"),
            (json!({"input_token_logprobs": info["input_token_logprobs"]}), 1, "no input_top_logprobs"),
            (json!({"input_token_logprobs": [[null, 1, null]]}), 0, "1 input_token_logprobs of 3 tokens"),
        ] {
            let wrong = scored_info(&info, likely).unwrap_err();
            assert!(wrong.contains(part), "{wrong}");
        }
    }
}
