//! What a teacher said of a row's completion, in the dataset's columns: its likeliest tokens in place of each token, with their
//! log-probabilities.

use super::rows::RowColumns;
use crate::ops::top_divergence::{LikelyToken, check_listed};
use serde_json::Value;

/// Column with a list of token ids for each token of the completion.
pub const TEACHER_TOKEN_IDS: &str = "teacher_token_ids";

/// Column with a list of their log-probabilities for each token of the completion.
pub const TEACHER_LOGPROBS: &str = "teacher_logprobs";

/// The tokens that a row's lists are about.
#[derive(Clone, Copy, Debug)]
pub struct TaughtTokens {
    /// Number of tokens.
    pub count: usize,
    /// Whether the last one is an end token that was added to the row's text, whose list may be left out.
    pub added_end: bool,
}

/// Reads the teacher's likeliest tokens in place of each of these tokens, the likeliest first. A list may be null or empty where nothing is
/// known. The error is a sentence about the row.
pub fn read_teacher_tokens(
    columns: &RowColumns,
    TaughtTokens { count, added_end }: TaughtTokens,
    is_known: impl Fn(u32) -> bool,
) -> Result<Vec<Vec<LikelyToken>>, String> {
    let [ids, logprobs] = [TEACHER_TOKEN_IDS, TEACHER_LOGPROBS].map(|name| {
        let lists = columns.get(name).ok_or_else(|| format!("there is no column {name:?}, in which a teacher's tokens are"))?;
        lists.as_array().ok_or_else(|| format!("column {name:?} is not a list with a list for each token"))
    });
    let (ids, logprobs) = (ids?, logprobs?);
    if ids.len() != logprobs.len() || !(ids.len() == count || added_end && ids.len() + 1 == count) {
        let of = if added_end { "of the completion's tokens, of which the last one ends it" } else { "tokens" };
        let (ids, logprobs) = (ids.len(), logprobs.len());
        return Err(format!("{TEACHER_TOKEN_IDS} and {TEACHER_LOGPROBS} have {ids} and {logprobs} lists for {count} {of}"));
    }
    let lists = ids.iter().zip(logprobs).enumerate().map(|(place, (ids, logprobs))| {
        likely_tokens(ids, logprobs, &is_known)
            .map_err(|detail| format!("what the teacher said of token {}: {detail}", place + 1))
    });
    let mut lists = lists.collect::<Result<Vec<_>, String>>()?;
    lists.resize(count, Vec::new());
    Ok(lists)
}

/// Returns the entries of a list, which may be null.
fn list<'a>(name: &str, value: &'a Value) -> Result<&'a [Value], String> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(all) => Ok(all),
        other => Err(format!("{name} has {other} in place of a list; one token alone is a list, too, as in [{other}]")),
    }
}

/// Reads the likeliest tokens in place of one token.
fn likely_tokens(ids: &Value, logprobs: &Value, is_known: impl Fn(u32) -> bool) -> Result<Vec<LikelyToken>, String> {
    let (ids, logprobs) = (list(TEACHER_TOKEN_IDS, ids)?, list(TEACHER_LOGPROBS, logprobs)?);
    if ids.len() != logprobs.len() {
        return Err(format!("{} ids and {} log-probabilities", ids.len(), logprobs.len()));
    }
    let token = |(id, logp): (&Value, &Value)| {
        let known = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| is_known(*id));
        let known = known.ok_or_else(|| format!("the tokenizer does not know token {id}"))?;
        let logp = logp.as_f64().ok_or_else(|| format!("token {id} has {logp}, which is no log-probability"))?;
        Ok(LikelyToken { id: known, logp: logp as f32 })
    };
    let mut tokens = ids.iter().zip(logprobs).map(token).collect::<Result<Vec<_>, String>>()?;
    check_listed(&tokens)?;
    tokens.sort_by(|a, b| b.logp.total_cmp(&a.logp));
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(ids: Value, logprobs: Value, count: usize) -> Result<Vec<Vec<LikelyToken>>, String> {
        let Value::Object(columns) = json!({"teacher_token_ids": ids, "teacher_logprobs": logprobs}) else { unreachable!() };
        read_teacher_tokens(&columns, TaughtTokens { count, added_end: true }, |id| id < 10)
    }

    #[test]
    fn each_token_has_a_list_with_the_likeliest_first() {
        let lists = read(json!([null, [4, 7], [], [1]]), json!([null, [-2.0, -0.25], [], [1e-4]]), 4).unwrap();
        let likely = |id, logp| LikelyToken { id, logp };
        assert_eq!(lists, [vec![], vec![likely(7, -0.25), likely(4, -2.0)], vec![], vec![likely(1, 1e-4)]]);
        // The end token's list is missing.
        assert_eq!(read(json!([[3]]), json!([[-1]]), 2).unwrap(), [vec![likely(3, -1.0)], vec![]]);
        let Value::Object(columns) = json!({"teacher_token_ids": [[3]], "teacher_logprobs": [[-1]]}) else { unreachable!() };
        let tokenized = read_teacher_tokens(&columns, TaughtTokens { count: 2, added_end: false }, |_| true);
        assert_eq!(tokenized.unwrap_err(), "teacher_token_ids and teacher_logprobs have 1 and 1 lists for 2 tokens");
    }

    #[test]
    fn what_is_no_distribution_is_refused_with_its_place() {
        for (ids, logprobs, count, part) in [
            (json!(null), json!([[-1]]), 1, "\"teacher_token_ids\" is not a list"),
            (json!([[1]]), json!([[-1], [-1]]), 2, "1 and 2 lists for 2 of the completion's tokens"),
            (json!([[1]]), json!([[-1]]), 3, "1 and 1 lists for 3 "),
            (json!([[1], [2]]), json!([[-1], [-1]]), 1, "2 and 2 lists for 1 "),
            (json!([[1], 2]), json!([[-1], [-1]]), 2, "said of token 2: teacher_token_ids has 2 in place of a list"),
            (json!([[1, 2]]), json!([[-1]]), 1, "2 ids and 1 log-probabilities"),
            (json!([[10]]), json!([[-1]]), 1, "does not know token 10"),
            (json!([[-1]]), json!([[-1]]), 1, "does not know token -1"),
            (json!([[1]]), json!([[0.5]]), 1, "token 1 has 0.5, which is no log-probability"),
            (json!([[1]]), json!([[null]]), 1, "token 1 has null, which is no log-probability"),
            (json!([[1]]), json!([[-1e300]]), 1, "token 1 has -inf, which is no log-probability"),
            (json!([[1, 1]]), json!([[-1, -1]]), 1, "token 1 occurs twice"),
            (json!([[1, 2]]), json!([[-0.1, -0.1]]), 1, "add up to 1.810"),
        ] {
            let refused = read(ids, logprobs, count).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        let lacks = read_teacher_tokens(&RowColumns::new(), TaughtTokens { count: 1, added_end: true }, |_| true).unwrap_err();
        assert!(lacks.contains("no column \"teacher_token_ids\""), "{lacks}");
    }
}
