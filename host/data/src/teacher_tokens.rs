//! What a teacher said of a row's completion, in the dataset's columns: its likeliest tokens in place of each token, with their
//! log-probabilities.

use super::rows::RowColumns;
use crate::ops::top_divergence::LikelyToken;
use serde_json::Value;
use std::collections::HashSet;

/// Column with a list of token ids for each token of the completion.
pub const TEACHER_TOKEN_IDS: &str = "teacher_token_ids";

/// Column with a list of their log-probabilities for each token of the completion.
pub const TEACHER_LOGPROBS: &str = "teacher_logprobs";

/// Maximum sum of a list's probabilities, which leaves room for rounding.
const MOST_PROBABILITY: f64 = 1.01;

/// Reads the teacher's likeliest tokens in place of each of a completion's `count` tokens, the likeliest first. A list may be null or
/// empty where nothing is known; that of an end token, the last one, may be left out. The error is a sentence about the row.
pub fn read_teacher_tokens(
    columns: &RowColumns,
    count: usize,
    is_known: impl Fn(u32) -> bool,
) -> Result<Vec<Vec<LikelyToken>>, String> {
    let [ids, logprobs] = [TEACHER_TOKEN_IDS, TEACHER_LOGPROBS].map(|name| {
        let lists = columns.get(name).ok_or_else(|| format!("there is no column {name:?}, in which a teacher's tokens are"))?;
        lists.as_array().ok_or_else(|| format!("column {name:?} is not a list with a list for each token"))
    });
    let (ids, logprobs) = (ids?, logprobs?);
    if ids.len() != logprobs.len() || !(ids.len() == count || ids.len() + 1 == count) {
        return Err(format!(
            "{TEACHER_TOKEN_IDS} and {TEACHER_LOGPROBS} have {} and {} lists for {count} tokens of the completion, its end included",
            ids.len(),
            logprobs.len()
        ));
    }
    let lists = ids.iter().zip(logprobs).enumerate().map(|(place, (ids, logprobs))| {
        likely_tokens(ids, logprobs, &is_known)
            .map_err(|detail| format!("what the teacher said of token {}: {detail}", place + 1))
    });
    let mut lists = lists.collect::<Result<Vec<_>, String>>()?;
    lists.resize(count, Vec::new());
    Ok(lists)
}

/// Reads the likeliest tokens in place of one token.
fn likely_tokens(ids: &Value, logprobs: &Value, is_known: impl Fn(u32) -> bool) -> Result<Vec<LikelyToken>, String> {
    let list = |value: &Value| match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(all) => Ok(all.clone()),
        _ => Err("is not a list".to_owned()),
    };
    let (ids, logprobs) = (list(ids)?, list(logprobs)?);
    if ids.len() != logprobs.len() {
        return Err(format!("{} ids and {} log-probabilities", ids.len(), logprobs.len()));
    }
    let token = |(id, logp): (&Value, &Value)| {
        let known = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| is_known(*id));
        let known = known.ok_or_else(|| format!("the tokenizer does not know token {id}"))?;
        let logp = logp.as_f64().filter(|logp| *logp <= MOST_PROBABILITY.ln() && logp.is_finite());
        let logp = logp.ok_or_else(|| format!("token {id} has no log-probability, which is at most 0"))?;
        Ok(LikelyToken { id: known, logp: logp.min(0.0) as f32 })
    };
    let mut tokens = ids.iter().zip(&logprobs).map(token).collect::<Result<Vec<_>, String>>()?;
    let mut seen = HashSet::new();
    if let Some(twice) = tokens.iter().find(|token| !seen.insert(token.id)) {
        return Err(format!("token {} occurs twice", twice.id));
    }
    let sum: f64 = tokens.iter().map(|token| f64::from(token.logp).exp()).sum();
    if sum > MOST_PROBABILITY {
        return Err(format!("the probabilities of its tokens add up to {sum:.3}"));
    }
    tokens.sort_by(|a, b| b.logp.total_cmp(&a.logp));
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(ids: Value, logprobs: Value, count: usize) -> Result<Vec<Vec<LikelyToken>>, String> {
        let Value::Object(columns) = json!({"teacher_token_ids": ids, "teacher_logprobs": logprobs}) else { unreachable!() };
        read_teacher_tokens(&columns, count, |id| id < 10)
    }

    #[test]
    fn each_token_has_a_list_with_the_likeliest_first() {
        let lists = read(json!([null, [4, 7], [], [1]]), json!([null, [-2.0, -0.25], [], [1e-4]]), 4).unwrap();
        let likely = |id, logp| LikelyToken { id, logp };
        assert_eq!(lists, [vec![], vec![likely(7, -0.25), likely(4, -2.0)], vec![], vec![likely(1, 0.0)]]);
        // The end token's list is missing.
        assert_eq!(read(json!([[3]]), json!([[-1]]), 2).unwrap(), [vec![likely(3, -1.0)], vec![]]);
    }

    #[test]
    fn what_is_no_distribution_is_refused_with_its_place() {
        for (ids, logprobs, count, part) in [
            (json!(null), json!([[-1]]), 1, "\"teacher_token_ids\" is not a list"),
            (json!([[1]]), json!([[-1], [-1]]), 2, "1 and 2 lists for 2 tokens"),
            (json!([[1]]), json!([[-1]]), 3, "1 and 1 lists for 3 tokens"),
            (json!([[1], [2]]), json!([[-1], [-1]]), 1, "2 and 2 lists for 1 tokens"),
            (json!([[1], 2]), json!([[-1], [-1]]), 2, "said of token 2: is not a list"),
            (json!([[1, 2]]), json!([[-1]]), 1, "2 ids and 1 log-probabilities"),
            (json!([[10]]), json!([[-1]]), 1, "does not know token 10"),
            (json!([[-1]]), json!([[-1]]), 1, "does not know token -1"),
            (json!([[1]]), json!([[0.5]]), 1, "token 1 has no log-probability"),
            (json!([[1]]), json!([[null]]), 1, "token 1 has no log-probability"),
            (json!([[1, 1]]), json!([[-1, -1]]), 1, "token 1 occurs twice"),
            (json!([[1, 2]]), json!([[-0.1, -0.1]]), 1, "add up to 1.810"),
        ] {
            let refused = read(ids, logprobs, count).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        let lacks = read_teacher_tokens(&RowColumns::new(), 1, |_| true).unwrap_err();
        assert!(lacks.contains("no column \"teacher_token_ids\""), "{lacks}");
    }
}
