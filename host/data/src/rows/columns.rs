//! Renames columns.

use super::row::names;
use super::{Location, RowColumns};
use crate::Result;

/// Renames a row's columns, given pairs of new name and original name. All renames happen at once, so two columns can be swapped; a column
/// that already has a new name is dropped.
///
/// # Errors
/// If a column is missing; names the row and the columns that it has.
pub(super) fn rename(place: &Location, columns: &mut RowColumns, wanted: &[(String, String)]) -> Result<()> {
    let mut renamed = Vec::with_capacity(wanted.len());
    for (name, own) in wanted {
        let missing = || {
            let found = names(columns);
            place.row_error(format!("has no column {own:?} to read as {name:?}; it has {found}"))
        };
        renamed.push((name.clone(), columns.get(own).cloned().ok_or_else(missing)?));
    }
    for (_, own) in wanted {
        columns.shift_remove(own);
    }
    columns.extend(renamed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn renamed(row: Value, wanted: &[(&str, &str)]) -> std::result::Result<Value, String> {
        let Value::Object(mut columns) = row else { panic!("a test gives an object") };
        let wanted: Vec<(String, String)> = wanted.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
        rename(&Location::first(), &mut columns, &wanted).map_err(|e| e.to_string())?;
        Ok(Value::Object(columns))
    }

    #[test]
    fn columns_are_read_under_other_names_all_at_once() {
        let row = json!({"question": "q", "answer": "a", "id": 3});
        let both = renamed(row.clone(), &[("prompt", "question"), ("completion", "answer")]).unwrap();
        assert_eq!(both, json!({"id": 3, "prompt": "q", "completion": "a"}));
        let exchanged = renamed(json!({"chosen": 1, "rejected": 2}), &[("chosen", "rejected"), ("rejected", "chosen")]);
        assert_eq!(exchanged.unwrap(), json!({"chosen": 2, "rejected": 1}));
        let replaced = renamed(json!({"prompt": "old", "problem": "new"}), &[("prompt", "problem")]).unwrap();
        assert_eq!(replaced, json!({"prompt": "new"}));
        let missing = renamed(row, &[("prompt", "problem")]).unwrap_err();
        assert!(
            missing.starts_with("test:1: has no column \"problem\"") && missing.ends_with("question, answer, id"),
            "{missing}"
        );
    }
}
