//! Datasets of texts to score: completions, full texts and conversations, or pairs.

use super::completions::completion;
use super::preferences::preference;
use super::rows::LocatedRow;
use super::rows::{self, Location, RowColumns};
use super::{CompletionRow, Dataset, PreferenceRow, PromptForm, Result, UnusableRows};

/// Row of a dataset to score.
#[derive(Clone, Debug)]
pub enum ScorableRow {
    /// Text, with its prompt if it has one.
    One(CompletionRow),
    /// Prompt with two answers.
    Pair(PreferenceRow),
}

/// Reads all rows of a dataset, skipping unusable ones. A row with a column `chosen` is a pair. `form` may build or extend prompts.
///
/// # Errors
/// Names what is damaged or, if `refused` is strict, the first unusable row.
pub fn read_scorable_rows(dataset: &Dataset, form: Option<&PromptForm>, refused: &mut UnusableRows) -> Result<Vec<ScorableRow>> {
    let one = |row: usize, place: &Location, mut columns: RowColumns| {
        if let Some(form) = form {
            form.fill(place, &mut columns, &["completion", "chosen", "rejected"])?;
        }
        if columns.contains_key("chosen") {
            let (pair, _) = preference(row, place, columns).map_err(|detail| place.row_error(detail))?;
            return Ok(ScorableRow::Pair(match form {
                Some(form) => form.pair(pair)?,
                None => pair,
            }));
        }
        let one = completion(row, place, columns).map_err(|detail| place.row_error(detail))?;
        Ok(ScorableRow::One(match form {
            Some(form) => form.completion(one)?,
            None => one,
        }))
    };
    let read = |(row, (place, columns)): (usize, LocatedRow)| (row, one(row, &place, columns));
    refused.collect_usable(rows::read(dataset)?.into_iter().enumerate().map(read))
}
