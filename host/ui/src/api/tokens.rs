//! Recorded values of each token of a completion.

use super::text::shown;
use serde_json::{Map, Value, json};

/// Maximum number of tokens shown per completion.
const MOST_TOKENS: usize = 20_000;

/// Maximum length of a token's text, in bytes.
const LONGEST_TOKEN: usize = 400;

/// Returns the tokens of a completion: their texts and values, which of them are replies, and where branches begin. Null if the run has not
/// recorded them.
pub(super) fn tokens(line: &Map<String, Value>) -> Value {
    let Some(values) = line.get("per_token").and_then(Value::as_object) else { return Value::Null };
    let array = |key: &str| values.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let texts: Vec<String> =
        array("text").iter().take(MOST_TOKENS).map(|text| shown(text.as_str().unwrap_or_default(), LONGEST_TOKEN)).collect();
    let count = texts.len();
    // Values count only if there is one per token: the file is untrusted.
    let figures = |key: &str| {
        let figures: Vec<Option<f64>> = array(key).iter().take(count).map(Value::as_f64).collect();
        if figures.len() == count { figures } else { Vec::new() }
    };
    json!({
        "text": texts,
        "logp": figures("logp"),
        "advantage": figures("advantage"),
        "ratio": figures("ratio"),
        "left_out": array("text").len() - count,
        "replies": pairs(line, "replies", count),
        "branches": pairs(line, "branches", count),
        "prompt": line.get("prompt_ids").and_then(Value::as_array).map_or(0, Vec::len),
    })
}

/// Returns the pairs of numbers in a list whose first number is below `count`.
fn pairs(line: &Map<String, Value>, key: &str, count: usize) -> Vec<[u64; 2]> {
    let pair = |pair: &Value| Some([pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?]);
    let all = line.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(pair);
    all.filter(|[first, _]| *first < count as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens_of(line: Value) -> Value {
        tokens(line.as_object().unwrap())
    }

    #[test]
    fn figures_that_are_not_of_each_token_are_left_out() {
        assert_eq!(tokens_of(json!({"completion": "ab"})), Value::Null);
        let line = json!({
            "prompt_ids": [1, 2, 3],
            "per_token": {"text": ["a", "\u{202e}b", 7], "logp": [-0.5, null, 0.0], "advantage": [1.0], "ratio": "x"},
            "replies": [[1, 2], [9, 10], ["x", 1]],
            "branches": [[1, 3]],
        });
        let tokens = tokens_of(line);
        assert_eq!(tokens["text"], json!(["a", "\\u{202e}b", ""]));
        assert_eq!(
            (&tokens["logp"], &tokens["advantage"], &tokens["ratio"]),
            (&json!([-0.5, null, 0.0]), &json!([]), &json!([]))
        );
        assert_eq!((&tokens["replies"], &tokens["branches"], &tokens["prompt"]), (&json!([[1, 2]]), &json!([[1, 3]]), &json!(3)));
    }

    #[test]
    fn long_completions_are_cut_off() {
        let texts = vec!["x"; MOST_TOKENS + 5];
        let tokens = tokens_of(json!({"per_token": {"text": texts, "logp": vec![0.0; MOST_TOKENS + 5]}}));
        assert_eq!((tokens["text"].as_array().unwrap().len(), &tokens["left_out"]), (MOST_TOKENS, &json!(5)));
        assert_eq!(tokens["logp"].as_array().unwrap().len(), MOST_TOKENS);
    }
}
