//! Log-probabilities in the formats of the routes.

use super::error::Result;
use crate::data::Tokenizer;
use crate::engine::ScoredToken;
use serde_json::{Map, Value, json};

/// Returns a number that JSON can represent: minus infinity, of an impossible token, becomes the lowest finite number.
fn finite(logp: f32) -> f32 {
    logp.max(f32::MIN)
}

/// Returns tokens in the format of `/v1/completions`. The first token of a prompt has no log-probability, since nothing precedes
/// it. `offset` is the number of characters before the tokens.
pub(super) fn legacy(tokenizer: &Tokenizer, tokens: &[(u32, Option<&ScoredToken>)], mut offset: usize) -> Result<Value> {
    let (mut texts, mut logps, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (id, token) in tokens {
        let text = tokenizer.decode_marked(&[*id])?;
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        logps.push(token.map(|token| finite(token.logp)));
        let top = token.map(|token| -> Result<Map<String, Value>> {
            // The token itself is always included, as in vLLM.
            let all = token.top.iter().copied().chain([(token.id, token.logp)]);
            let mut map = Map::new();
            for (id, logp) in all {
                map.entry(tokenizer.decode_marked(&[id])?).or_insert_with(|| finite(logp).into());
            }
            Ok(map)
        });
        tops.push(top.transpose()?);
    }
    Ok(json!({"tokens": texts, "token_logprobs": logps, "top_logprobs": tops, "text_offset": offsets}))
}

/// Returns tokens in the format of `/v1/chat/completions`.
pub(super) fn content<'a>(tokenizer: &Tokenizer, tokens: impl IntoIterator<Item = &'a ScoredToken>) -> Result<Value> {
    let entry = |id: u32, logp: f32| -> Result<Map<String, Value>> {
        let text = tokenizer.decode_marked(&[id])?;
        let entry = [("bytes", json!(text.as_bytes())), ("token", text.into()), ("logprob", finite(logp).into())];
        Ok(entry.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    };
    let described = |token: &ScoredToken| -> Result<Value> {
        let mut all = entry(token.id, token.logp)?;
        let top = token.top.iter().map(|&(id, logp)| Ok(Value::Object(entry(id, logp)?)));
        all.insert("top_logprobs".into(), top.collect::<Result<Value>>()?);
        Ok(Value::Object(all))
    };
    Ok(json!({"content": tokens.into_iter().map(described).collect::<Result<Vec<_>>>()?}))
}

/// Returns tokens by id, in the format of `/inference/v1/generate`.
pub(super) fn by_id(tokens: &[ScoredToken]) -> Value {
    let entry = |id: u32, logp: f32| json!({"token": format!("token_id:{id}"), "token_id": id, "logprob": finite(logp)});
    let described = tokens.iter().map(|token| {
        let mut all = entry(token.id, token.logp);
        all["rank"] = json!((token.rank > 0).then_some(token.rank));
        all["top_logprobs"] = token.top.iter().map(|&(id, logp)| entry(id, logp)).collect();
        all
    });
    json!({"content": described.collect::<Vec<_>>()})
}

/// Returns the scored tokens of a prompt in the format of vLLM's `prompt_logprobs`: a map from ids for each token, null for the first.
pub(super) fn of_prompt(tokenizer: &Tokenizer, scored: &[ScoredToken]) -> Result<Value> {
    let mut all = vec![Value::Null];
    for token in scored {
        let mut map = Map::new();
        let own = (token.id, token.logp, token.rank);
        let top = token.top.iter().zip(1..).map(|(&(id, logp), rank)| (id, logp, rank));
        for (id, logp, rank) in [own].into_iter().chain(top) {
            let text = tokenizer.decode_marked(&[id])?;
            let entry = json!({"logprob": finite(logp), "rank": rank, "decoded_token": text});
            map.entry(id.to_string()).or_insert(entry);
        }
        all.push(Value::Object(map));
    }
    Ok(all.into())
}
