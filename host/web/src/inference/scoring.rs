//! Requests for the log-probabilities of a text's own tokens.

use super::{InferenceClient, InferenceFailure, RequestTimeout, ServerDescription, ServerKind};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

impl InferenceClient {
    /// Requests the log-probability of each token but the first, given the tokens before it, at temperature 1.
    ///
    /// # Errors
    /// If the server does not answer in time, or scores other tokens than these.
    pub fn score(
        &self,
        tokens: &[u32],
        server: &ServerDescription,
        patience: RequestTimeout,
    ) -> Result<Vec<f32>, InferenceFailure> {
        if server.kind == ServerKind::Sglang {
            return self.score_with_sglang(tokens, patience);
        }
        // Both sample at least one token.
        let body = json!({"model": server.model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0});
        let answer = self.post(PATH, &body, patience)?;
        scored(&answer["choices"][0]["prompt_logprobs"], tokens).map_err(|detail| self.foreign(PATH, detail))
    }
}

/// Reads an entry for each token: null for the first, and for others a map from tokens to what is said of them.
fn scored(entries: &Value, tokens: &[u32]) -> Result<Vec<f32>, String> {
    let entries = entries.as_array().ok_or("it has no prompt_logprobs")?;
    if entries.len() != tokens.len() {
        return Err(format!("{} prompt_logprobs of {} tokens", entries.len(), tokens.len()));
    }
    let pairs = entries.iter().zip(tokens).skip(1);
    let logp = pairs.map(|(entry, token)| {
        let logp = entry[token.to_string()]["logprob"].as_f64().map(|logp| logp as f32);
        logp.filter(|logp| logp.is_finite()).ok_or_else(|| format!("prompt_logprobs lack token {token}"))
    });
    logp.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_has_its_own_log_probability() {
        let entries = json!([null, {"7": {"logprob": -0.5, "rank": 2}, "9": {"logprob": -0.1}}, {"3": {"logprob": -2}}]);
        assert_eq!(scored(&entries, &[1, 7, 3]), Ok(vec![-0.5, -2.0]));
        for (entries, tokens, part) in [
            (json!(null), &[1, 7][..], "no prompt_logprobs"),
            (entries.clone(), &[1, 7], "3 prompt_logprobs of 2 tokens"),
            (entries, &[1, 8, 3], "lack token 8"),
            (json!([null, {"7": {"logprob": null}}]), &[1, 7], "lack token 7"),
            (json!([null, {"7": {"logprob": -1e300}}]), &[1, 7], "lack token 7"),
        ] {
            let wrong = scored(&entries, tokens).unwrap_err();
            assert!(wrong.contains(part), "{wrong}");
        }
    }
}
