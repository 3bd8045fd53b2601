//! Requests for the log-probabilities of a text's own tokens.

use super::{InferenceClient, InferenceFailure, RequestTimeout, ServerDescription, ServerKind};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

/// What a model says of a token, given the tokens before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScore {
    /// Its log-probability.
    pub logp: f32,
    /// The likeliest tokens in its place with their log-probabilities, the likeliest first.
    pub likely: Vec<(u32, f32)>,
}

impl InferenceClient {
    /// Requests the log-probability of each token but the first, given the tokens before it, at temperature 1, with this number of the
    /// likeliest tokens in its place.
    ///
    /// # Errors
    /// If the server does not answer in time, or scores other tokens than these.
    pub fn score(
        &self,
        tokens: &[u32],
        likely: usize,
        server: &ServerDescription,
        patience: RequestTimeout,
    ) -> Result<Vec<TokenScore>, InferenceFailure> {
        if server.kind == ServerKind::Sglang {
            return self.score_with_sglang(tokens, likely, patience);
        }
        // Both sample at least one token.
        let body = json!({"model": server.model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": likely});
        let answer = self.post(PATH, &body, patience)?;
        scored(&answer["choices"][0]["prompt_logprobs"], tokens, likely).map_err(|detail| self.foreign(PATH, detail))
    }
}

/// Reads an entry for each token: null for the first, and for others a map from tokens to what is said of them. It has the token itself,
/// also if it is not among the likeliest.
fn scored(entries: &Value, tokens: &[u32], likely: usize) -> Result<Vec<TokenScore>, String> {
    let entries = entries.as_array().ok_or("it has no prompt_logprobs")?;
    if entries.len() != tokens.len() {
        return Err(format!("{} prompt_logprobs of {} tokens", entries.len(), tokens.len()));
    }
    let pairs = entries.iter().zip(tokens).skip(1);
    pairs.map(|(entry, token)| scored_token(entry, *token, likely)).collect()
}

fn scored_token(entry: &Value, token: u32, likely: usize) -> Result<TokenScore, String> {
    let lacks = || format!("prompt_logprobs lack token {token}");
    let logp = |entry: &Value| entry["logprob"].as_f64().map(|logp| logp as f32).filter(|logp| logp.is_finite());
    let all = entry.as_object().ok_or_else(lacks)?;
    let own = all.get(&token.to_string()).and_then(logp).ok_or_else(lacks)?;
    if likely == 0 {
        return Ok(TokenScore { logp: own, likely: Vec::new() });
    }
    let pairs = all.iter().map(|(id, entry)| Some((id.parse().ok()?, logp(entry)?)));
    let pairs =
        pairs.collect::<Option<Vec<(u32, f32)>>>().ok_or("prompt_logprobs have an entry that is no token with a number")?;
    Ok(TokenScore { logp: own, likely: likeliest(pairs, likely)? })
}

/// Returns this number of the likeliest tokens.
pub(super) fn likeliest(mut tokens: Vec<(u32, f32)>, count: usize) -> Result<Vec<(u32, f32)>, String> {
    if tokens.len() < count {
        return Err(format!("it has {} of the {count} likeliest tokens", tokens.len()));
    }
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    tokens.truncate(count);
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_has_its_own_log_probability() {
        let entries = json!([null, {"7": {"logprob": -0.5, "rank": 2}, "9": {"logprob": -0.1}}, {"3": {"logprob": -2}}]);
        let logp = |entries: &Value, tokens: &[u32]| scored(entries, tokens, 0).map(|all| all.iter().map(|t| t.logp).collect());
        assert_eq!(logp(&entries, &[1, 7, 3]), Ok(vec![-0.5, -2.0]));
        for (entries, tokens, part) in [
            (json!(null), &[1, 7][..], "no prompt_logprobs"),
            (entries.clone(), &[1, 7], "3 prompt_logprobs of 2 tokens"),
            (entries, &[1, 8, 3], "lack token 8"),
            (json!([null, {"7": {"logprob": null}}]), &[1, 7], "lack token 7"),
            (json!([null, {"7": {"logprob": -1e300}}]), &[1, 7], "lack token 7"),
        ] {
            let wrong = logp(&entries, tokens).unwrap_err();
            assert!(wrong.contains(part), "{wrong}");
        }
    }

    #[test]
    fn the_likeliest_tokens_come_in_order_and_without_an_unlikely_one_that_was_there() {
        let entry = |own: f64| json!([null, {"7": {"logprob": own}, "9": {"logprob": -0.1}, "4": {"logprob": -1.5}}]);
        let likely = |entries: &Value, count| scored(entries, &[1, 7], count).map(|all| all[0].likely.clone());
        assert_eq!(likely(&entry(-9.0), 2), Ok(vec![(9, -0.1), (4, -1.5)]));
        assert_eq!(likely(&entry(-1.0), 2), Ok(vec![(9, -0.1), (7, -1.0)]));
        assert!(likely(&entry(-1.0), 4).unwrap_err().contains("3 of the 4 likeliest"));
        assert!(likely(&json!([null, {"7": {"logprob": -1}, "x": {"logprob": -2}}]), 1).unwrap_err().contains("no token"));
    }
}
