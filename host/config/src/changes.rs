//! Differences between two configurations.

use super::RunConfig;
use serde_json::{Map, Value, json};

/// Returns the top-level keys that differ, each with its old and its new value.
pub fn changes(old: &RunConfig, new: &RunConfig) -> serde_json::Result<Map<String, Value>> {
    let (old, new) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    let keys = new.as_object().into_iter().flatten();
    let differs = keys.filter(|(key, now)| !same(&old[key.as_str()], now));
    Ok(differs.map(|(key, now)| (key.clone(), json!([old[key.as_str()], now]))).collect())
}

/// Compares values; 1 and 1.0 are equal.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_what_they_mean() {
        let old = RunConfig::default();
        let mut new = RunConfig { seed: 7, ..old.clone() };
        new.loss.insert("beta".into(), json!(1));
        let found = changes(&old, &new).unwrap();
        assert_eq!((found.len(), &found["seed"]), (2, &json!([42, 7])));
        let mut spelled = new.clone();
        spelled.loss.insert("beta".into(), json!(1.0));
        assert!(changes(&new, &spelled).unwrap().is_empty());
    }
}
