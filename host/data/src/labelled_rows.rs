//! Datasets of desirable and undesirable completions: a prompt, a completion and a label per row; or preference pairs, each of which
//! becomes two such rows.

use super::completions::completion;
use super::preferences::prompted;
use super::rows::{Location, RowColumns};
use super::{CompletionRow, PreferenceRow, Result};
use serde_json::Value;

/// Number of pairs that are split as a unit: all chosen answers of a unit precede the rejected ones, as in TRL.
const TOGETHER: usize = 1000;

/// Row of a labelled dataset.
#[derive(Clone, Debug)]
pub struct LabelledRow {
    /// Completion and its prompt, which is always present.
    pub row: CompletionRow,
    /// Whether the completion is desirable.
    pub label: bool,
}

impl LabelledRow {
    /// Reads one row: a labelled completion, or the two completions of a pair, the chosen one first.
    ///
    /// # Errors
    /// If the row is neither.
    pub fn from_columns(row: usize, place: &Location, columns: RowColumns) -> Result<Vec<Self>> {
        parse_rows(row, place, columns).map_err(|detail| place.row_error(detail))
    }
}

/// Puts the completions of rows, of which only pairs have two, in the order in which they are learned.
#[derive(Debug)]
pub struct PairOrdering<T> {
    chosen: Vec<T>,
    rejected: Vec<T>,
}

impl<T> Default for PairOrdering<T> {
    fn default() -> Self {
        Self { chosen: Vec::new(), rejected: Vec::new() }
    }
}

impl<T> PairOrdering<T> {
    /// Adds the completions of the next row. Returns those that come next in the order.
    pub fn push(&mut self, parts: Vec<T>) -> Vec<T> {
        match <[T; 2]>::try_from(parts) {
            Ok([better, worse]) => {
                self.chosen.push(better);
                self.rejected.push(worse);
                if self.chosen.len() < TOGETHER { Vec::new() } else { std::mem::take(self).end() }
            }
            Err(parts) => parts,
        }
    }

    /// Returns the remaining completions.
    pub fn end(self) -> Vec<T> {
        self.chosen.into_iter().chain(self.rejected).collect()
    }
}

fn parse_rows(row: usize, place: &Location, mut columns: RowColumns) -> std::result::Result<Vec<LabelledRow>, String> {
    if super::rows::has(&columns, "chosen") || super::rows::has(&columns, "rejected") {
        return prompted(row, place, columns).map(unpaired);
    }
    let found = super::rows::names(&columns);
    let wanted = "a labelled dataset has \"prompt\", \"completion\" and \"label\", or \"chosen\" and \"rejected\"";
    let missing = |name: &str, is_there| format!("{}; {wanted}, and this row {found}", super::rows::absent(is_there, name));
    let label = label(&columns.shift_remove("label").ok_or_else(|| missing("label", false))?)?;
    if let Some(name) = ["prompt", "completion"].into_iter().find(|name| !super::rows::has(&columns, name)) {
        let lacking: Vec<&str> = ["prompt", "completion"].into_iter().filter(|name| !columns.contains_key(*name)).collect();
        return Err(missing(name, columns.contains_key(name)) + &super::rows::advice(&columns, &lacking, false));
    }
    Ok(vec![LabelledRow { row: completion(row, place, columns)?, label }])
}

/// Reads a boolean, which tables may store as a number or as text.
fn label(value: &Value) -> std::result::Result<bool, String> {
    let text = value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_lowercase());
    match text.as_str() {
        "true" | "1" | "1.0" => Ok(true),
        "false" | "0" | "0.0" => Ok(false),
        _ => Err("column \"label\" is neither true nor false".into()),
    }
}

/// Splits a pair into two rows.
fn unpaired(pair: PreferenceRow) -> Vec<LabelledRow> {
    let PreferenceRow { row, place, prompt, chosen, rejected, extras, columns } = pair;
    let whole = CompletionRow { row, place, prompt: Some(prompt), completion: chosen, tokens: None, extras, columns };
    let worse = CompletionRow { completion: rejected, ..whole.clone() };
    vec![LabelledRow { row: whole, label: true }, LabelledRow { row: worse, label: false }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TextOrChat, UnusableRows};
    use serde_json::json;

    /// Returns the completions of all rows in this order.
    fn in_order<T>(rows: impl IntoIterator<Item = Vec<T>>) -> Vec<T> {
        let mut order = PairOrdering::default();
        let mut ordered: Vec<T> = rows.into_iter().flat_map(|parts| order.push(parts)).collect();
        ordered.extend(order.end());
        ordered
    }

    fn read(rows: &[Value]) -> std::result::Result<Vec<(String, String, bool)>, String> {
        let row =
            |(i, row): (usize, &Value)| (i, LabelledRow::from_columns(i, &Location::first(), row.as_object().unwrap().clone()));
        let mut refused = UnusableRows::default();
        let read = in_order(refused.collect_usable(rows.iter().enumerate().map(row)).map_err(|e| e.to_string())?);
        refused.warning(read.len()).map_err(|e| e.to_string())?;
        let text = |prompt: &TextOrChat| if let TextOrChat::Text(text) = prompt { text.clone() } else { "chat".into() };
        Ok(read
            .iter()
            .map(|r| (r.row.prompt.as_ref().map_or_else(String::new, text), text(&r.row.completion), r.label))
            .collect())
    }

    fn row(prompt: &str, completion: &str, label: bool) -> (String, String, bool) {
        (prompt.into(), completion.into(), label)
    }

    #[test]
    fn rows_have_labels_of_any_spelling_and_odd_ones_are_left_out() {
        let rows = [json!(true), json!(0), json!("True"), json!("false "), json!(1.0), json!("maybe"), json!(null)];
        let rows: Vec<Value> = rows.iter().map(|label| json!({"prompt": "p", "completion": "c", "label": label})).collect();
        let labels: Vec<bool> = read(&rows).unwrap().into_iter().map(|(.., label)| label).collect();
        assert_eq!(labels, [true, false, true, false, true]);
        assert!(read(&[json!({"prompt": "p", "completion": "c"})]).unwrap_err().contains("no column \"label\""));
        assert!(read(&[json!({"completion": "c", "label": true})]).unwrap_err().contains("no column \"prompt\""));
        let null = json!({"prompt": null, "completion": "c", "label": true});
        assert!(read(&[null]).unwrap_err().contains("column \"prompt\" is null"));
        assert!(read(&[json!({"prompt": "p", "text": "c", "label": true})]).unwrap_err().contains("no column \"completion\""));
        let unanswered = read(&[json!({"prompt": "p", "answer": "c", "label": true})]).unwrap_err();
        assert!(unanswered.contains("--columns completion=answer"), "{unanswered}");
    }

    #[test]
    fn pairs_are_taken_apart_with_the_chosen_answers_first() {
        let pairs = [json!({"prompt": "p", "chosen": "a", "rejected": "b"}), json!({"chosen": "q is c", "rejected": "q is d"})];
        let expected = [row("p", "a", true), row("q is", " c", true), row("p", "b", false), row("q is", " d", false)];
        assert_eq!(read(&pairs).unwrap(), expected);
        let many: Vec<Value> = (0..=TOGETHER).map(|i| json!({"prompt": "p", "chosen": "a", "rejected": i.to_string()})).collect();
        let read = read(&many).unwrap();
        assert_eq!((read.len(), &read[TOGETHER], &read[2 * TOGETHER]), (2002, &row("p", "0", false), &row("p", "a", true)));
    }
}
