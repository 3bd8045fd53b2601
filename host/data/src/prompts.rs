//! Prompt datasets: a column `prompt`, a string or a conversation, and any other columns, which are passed to rewards.

use super::prompt::PromptRow;
use super::rows::LocatedRow;
use super::rows::{self};
use super::{Dataset, PromptForm, Result, UnusableRows};
use std::path::Path;

/// Reads all rows of a prompt dataset, skipping unusable ones.
///
/// # Errors
/// Names what is damaged or, if `refused` is strict, the first unusable row.
pub fn read_prompts(dataset: &Dataset, refused: &mut UnusableRows) -> Result<Vec<PromptRow>> {
    read_prompts_as(dataset, None, refused)
}

/// Reads all rows of a prompt dataset, with prompts that settings build or extend.
///
/// # Errors
/// Errors of [`read_prompts`].
pub fn read_prompts_as(dataset: &Dataset, form: Option<&PromptForm>, refused: &mut UnusableRows) -> Result<Vec<PromptRow>> {
    let read = |(row, (place, mut columns)): (usize, LocatedRow)| {
        let asked = || match form {
            Some(form) => {
                form.fill(&place, &mut columns, &[])?;
                form.prompt(PromptRow::from_columns(row, &place, columns)?)
            }
            None => PromptRow::from_columns(row, &place, columns),
        };
        (row, asked())
    };
    refused.collect_usable(rows::read(dataset)?.into_iter().enumerate().map(read))
}

/// Parses prompts from memory; all rows must be usable. Errors name `path`.
pub fn parse_prompts(path: &Path, bytes: &[u8]) -> Result<Vec<PromptRow>> {
    let mut refused = UnusableRows::new(true);
    let read = |(row, (place, columns)): (usize, LocatedRow)| (row, PromptRow::from_columns(row, &place, columns));
    let rows = refused.collect_usable(rows::parse(path, bytes)?.into_iter().enumerate().map(read))?;
    refused.warning(rows.len())?;
    Ok(rows)
}
