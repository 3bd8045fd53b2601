//! Table rows that an adapter trains.

use super::json::ConfigObject;
use crate::config::printable;
use serde_json::Value;

/// Table rows that an adapter replaces, by the suffixes of the tables' names.
pub(super) struct TrainedRows(Vec<(String, Vec<u32>)>);

impl TrainedRows {
    /// Reads `trainable_token_indices`: a list of the embedding's rows, or a list for each table.
    ///
    /// # Errors
    /// If the value has another form.
    pub(super) fn parse(config: &ConfigObject) -> std::result::Result<Self, String> {
        let list = |value: &Value| -> Option<Vec<u32>> {
            let all = value.as_array().filter(|all| all.len() <= MOST_ROWS)?;
            all.iter().map(|index| index.as_u64().and_then(|index| u32::try_from(index).ok())).collect()
        };
        let Some(value) = config.get(INDICES) else { return Ok(Self(Vec::new())) };
        let all = match value {
            Value::Object(tables) => tables.iter().map(|(name, value)| Some((name.clone(), list(value)?))).collect(),
            value => list(value).map(|rows| vec![(String::new(), rows)]),
        };
        let wrong = || {
            format!("{INDICES} is {}; it must be a list of token ids, or one for each table", printable(&value.to_string(), 80))
        };
        let mut all: Vec<(String, Vec<u32>)> = all.ok_or_else(wrong)?;
        all.retain(|(_, rows)| !rows.is_empty());
        Ok(Self(all))
    }

    /// Returns the rows of a table. Rows without a table's name are the embedding's.
    pub(super) fn table_rows(&self, module: &str, is_embedding: bool) -> Option<&[u32]> {
        let means = |name: &str| if name.is_empty() { is_embedding } else { format!(".{module}").ends_with(&format!(".{name}")) };
        self.0.iter().find(|(name, _)| means(name)).map(|(_, rows)| rows.as_slice())
    }
}

/// Maximum number of rows of a table.
const MOST_ROWS: usize = 1 << 24;

/// The key of `peft` for single rows.
pub(super) const INDICES: &str = "trainable_token_indices";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_are_those_of_the_embedding_or_of_the_tables_that_are_named() {
        let parsed = |value: Value| TrainedRows::parse(&ConfigObject::parse(&json!({ INDICES: value }).to_string()).unwrap());
        let list = parsed(json!([3, 1])).unwrap();
        assert_eq!(list.table_rows("model.embed_tokens", true), Some(&[3, 1][..]));
        assert_eq!(list.table_rows("lm_head", false), None);
        let named = parsed(json!({ "embed_tokens": [3], "lm_head": [4] })).unwrap();
        assert_eq!(named.table_rows("model.embed_tokens", true), Some(&[3][..]));
        assert_eq!(named.table_rows("lm_head", false), Some(&[4][..]));
        for none in [json!(null), json!([]), json!({}), json!({ "embed_tokens": [] })] {
            assert_eq!(parsed(none).unwrap().table_rows("model.embed_tokens", true), None);
        }
        for wrong in [json!(3), json!([-1]), json!(["a"]), json!({ "embed_tokens": 3 }), json!([1u64 << 40])] {
            assert!(parsed(wrong).err().unwrap().contains(INDICES));
        }
    }
}
