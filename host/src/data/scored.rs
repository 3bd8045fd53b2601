//! Datasets of texts to score: completions, whole texts and conversations, or pairs.

use super::completions::completion;
use super::preferences::preference;
use super::rows::{self, Row};
use super::{CompletionRow, Dataset, PreferenceRow, Refused, Result};

/// One row of a dataset to score.
#[derive(Clone, Debug)]
pub enum Scored {
    /// A text, with its prompt if it has one.
    One(CompletionRow),
    /// A prompt with two answers.
    Pair(PreferenceRow),
}

/// Reads a whole dataset, skipping unusable rows. A row with a column `chosen` is a pair.
///
/// # Errors
/// Names what is damaged or, if `refused` is strict, the first unusable row.
pub fn read_scored(dataset: &Dataset, refused: &mut Refused) -> Result<Vec<Scored>> {
    let read = |(row, (place, columns)): (usize, Row)| {
        let read = match columns.contains_key("chosen") {
            true => preference(row, &place, columns).map(|(pair, _)| Scored::Pair(pair)),
            false => completion(row, &place, columns).map(Scored::One),
        };
        (row, read.map_err(|detail| place.wrong(detail)))
    };
    refused.sort(rows::read(dataset)?.into_iter().enumerate().map(read))
}
