//! Rows that are already tokenized, in the form of TRL's SFT.

use serde_json::{Map, Value};

/// Label of a token that is not learned.
const IGNORED: i64 = -100;

/// Tokens of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizedRow {
    /// Column `input_ids`.
    pub ids: Vec<u32>,
    /// Mask of learned tokens, from the column `labels` or else `assistant_masks`: 1 for each token that is learned.
    learned: Option<Vec<u8>>,
    /// Column `completion_mask`, unless there are labels.
    completion: Option<Vec<u8>>,
}

impl TokenizedRow {
    /// Removes a row's tokens from its columns; `None` if it has no `input_ids`.
    ///
    /// # Errors
    /// Names the column that is invalid.
    pub(super) fn take(columns: &mut Map<String, Value>) -> Result<Option<Self>, String> {
        let Some(given) = super::rows::take(columns, "input_ids") else { return Ok(None) };
        let numbers = |name: &str, value: &Value| {
            let all = value.as_array().and_then(|all| all.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>());
            all.ok_or_else(|| format!("column {name:?} is not a list of whole numbers"))
        };
        let ids = numbers("input_ids", &given)?.into_iter().map(u32::try_from).collect::<Result<Vec<u32>, _>>();
        let ids = ids.map_err(|_| "column \"input_ids\" has a number that is no token".to_owned())?;
        columns.shift_remove("attention_mask");
        let mut mask = |name: &str, is_learned: fn(i64, u32) -> Option<bool>| {
            let Some(given) = super::rows::take(columns, name) else { return Ok(None) };
            let values = numbers(name, &given)?;
            if values.len() != ids.len() {
                return Err(format!("column {name:?} has {} values for {} tokens in \"input_ids\"", values.len(), ids.len()));
            }
            let learned = values.iter().zip(&ids).map(|(value, id)| is_learned(*value, *id).map(u8::from));
            let wrong = || format!("column {name:?} has values other than those of \"input_ids\" and {IGNORED}, or 0 and 1");
            learned.collect::<Option<Vec<u8>>>().ok_or_else(wrong).map(Some)
        };
        let labels = mask("labels", |label, id| match label {
            IGNORED => Some(false),
            label => (label == i64::from(id)).then_some(true),
        })?;
        let of_bits = |bit: i64, _: u32| [0, 1].contains(&bit).then_some(bit == 1);
        let (assistant, completion) = (mask("assistant_masks", of_bits)?, mask("completion_mask", of_bits)?);
        let completion = completion.filter(|_| labels.is_none());
        Ok(Some(Self { ids, learned: labels.or(assistant), completion }))
    }

    /// Returns whether the row itself determines which tokens are learned, by labels or the assistant's mask.
    pub fn has_learned_mask(&self) -> bool {
        self.learned.is_some()
    }

    /// Returns the mask of learned tokens; with `whole`, prompts are learned, too. `None` if all tokens are learned.
    pub fn learned(&self, whole: bool) -> Option<Vec<u8>> {
        let completion = self.completion.as_ref().filter(|_| !whole);
        match (&self.learned, completion) {
            (Some(learned), Some(completion)) => Some(learned.iter().zip(completion).map(|(a, b)| a & b).collect()),
            (learned, completion) => learned.as_ref().or(completion).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(row: Value) -> Result<Option<TokenizedRow>, String> {
        let Value::Object(mut columns) = row else { panic!("a test gives an object") };
        TokenizedRow::take(&mut columns)
    }

    #[test]
    fn labels_or_else_masks_say_what_is_learned() {
        let learned = |row: Value, whole| read(row).unwrap().unwrap().learned(whole);
        assert_eq!(learned(json!({"input_ids": [4, 5], "attention_mask": [1, 1]}), false), None);
        assert_eq!(
            learned(json!({"input_ids": [4, 5], "labels": [-100, 5], "completion_mask": [1, 0]}), false),
            Some(vec![0, 1])
        );
        let masked = json!({"input_ids": [4, 5, 6], "assistant_masks": [1, 1, 0], "completion_mask": [0, 1, 1]});
        assert_eq!(learned(masked.clone(), false), Some(vec![0, 1, 0]));
        assert_eq!(learned(masked, true), Some(vec![1, 1, 0]));
        assert_eq!(learned(json!({"input_ids": [4, 5], "completion_mask": [0, 1]}), true), None);
        assert_eq!(read(json!({"text": "t", "input_ids": null})), Ok(None));
        let names = |row: Value| read(row).unwrap().unwrap().has_learned_mask();
        assert!(names(json!({"input_ids": [4], "labels": [4]})) && names(json!({"input_ids": [4], "assistant_masks": [1]})));
        assert!(!names(json!({"input_ids": [4], "completion_mask": [1]})));
    }

    #[test]
    fn columns_that_do_not_fit_are_named() {
        for (row, part) in [
            (json!({"input_ids": "1 2"}), "\"input_ids\" is not a list"),
            (json!({"input_ids": [1.5]}), "\"input_ids\" is not a list"),
            (json!({"input_ids": [-1]}), "is no token"),
            (json!({"input_ids": [1, 2], "labels": [1]}), "1 values for 2 tokens"),
            (json!({"input_ids": [1, 2], "labels": [1, 3]}), "\"labels\" has values other"),
            (json!({"input_ids": [1], "completion_mask": [2]}), "\"completion_mask\" has values other"),
        ] {
            let error = read(row).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
