//! The rows of a dataset, and where they come from.

use super::super::Error;
use crate::config::{printable, printable_path};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Maximum length of a description of a row or a file in bytes, since it may quote its contents.
const LONGEST_DETAIL: usize = 2048;

/// Maximum number of names in an error.
const LISTED: usize = 16;

/// The location of a row: a file, and the line in it, or the position in its array or table, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    file: Arc<Path>,
    pub(super) line: usize,
}

impl Location {
    /// Returns the error of an unusable row.
    pub fn row_error(&self, detail: impl Into<String>) -> Error {
        Error::Row { path: self.file.to_path_buf(), line: self.line, detail: printable(&detail.into(), LONGEST_DETAIL) }
    }

    /// Returns the error of a row on which something failed.
    pub fn failed(&self, error: Error) -> Error {
        match error {
            Error::Unbounded { place, detail } => {
                let own = format!("{}:{}", printable_path(&self.file), self.line);
                Error::Unbounded { place: own, detail: format!("{place}: {detail}") }
            }
            row @ Error::Row { .. } => row,
            other => self.row_error(other.to_string()),
        }
    }

    #[cfg(test)]
    pub(crate) fn first() -> Self {
        Self { file: Path::new("test").into(), line: 1 }
    }
}

/// A row and its location.
pub(crate) type LocatedRow = (Location, RowColumns);

/// Numbers the rows of one file.
#[derive(Debug)]
pub(super) struct DatasetFile(pub(super) Arc<Path>);

impl DatasetFile {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.into())
    }

    pub(super) fn place(&self, line: usize) -> Location {
        Location { file: self.0.clone(), line }
    }

    /// Returns the error of a file that is unusable as a whole.
    pub(super) fn file_error(&self, detail: impl Into<String>) -> Error {
        Error::Dataset { path: self.0.to_path_buf(), detail: printable(&detail.into(), LONGEST_DETAIL) }
    }
}

/// Returns whether a row has a column; null is none.
pub(crate) fn has(columns: &Map<String, Value>, name: &str) -> bool {
    columns.get(name).is_some_and(|value| !value.is_null())
}

/// Takes a column out of a row; null is none.
pub(crate) fn take(columns: &mut Map<String, Value>, name: &str) -> Option<Value> {
    columns.shift_remove(name).filter(|value| !value.is_null())
}

/// Says that a row lacks a column, or that nothing is in the one that `is_there`.
pub(crate) fn absent(is_there: bool, name: &str) -> String {
    match is_there {
        true => format!("column {name:?} is null, or has bytes that are not text"),
        false => format!("has no column {name:?}"),
    }
}

/// Usual names of columns with prompts, and with answers.
const ASKED: [&str; 8] = ["question", "problem", "instruction", "query", "input", "text", "content", "title"];

const ANSWERED: [&str; 6] = ["answer", "response", "output", "solution", "target", "label"];

/// Ends an error about a row without a prompt, and perhaps without an answer, as `lacking` names them: says which of its columns could be
/// read as such. If prompts may be built from a template, it says so, too.
pub(crate) fn advice(columns: &Map<String, Value>, lacking: &[&str], may_build: bool) -> String {
    let is_plain = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c));
    let texts: Vec<&str> =
        columns.iter().filter(|(name, value)| value.is_string() && is_plain(name)).map(|(name, _)| &**name).collect();
    let usual = |names: &[&'static str]| names.iter().find(|name| texts.contains(*name)).copied();
    let Some(asked) = usual(&ASKED).or_else(|| texts.iter().find(|name| !ANSWERED.contains(name)).copied()) else {
        return String::new();
    };
    let answered = lacking.get(1).and_then(|name| Some(format!(",{name}={}", usual(&ANSWERED)?))).unwrap_or_default();
    let (named, built) = (lacking.first().unwrap_or(&"prompt"), format!(", or build prompts: --prompt-template '{{{asked}}}'"));
    format!("; to read others as such: --columns {named}={asked}{answered}{}", if may_build { &built } else { "" })
}

/// Returns the names of a row's columns, for errors.
pub(crate) fn names(columns: &Map<String, Value>) -> String {
    listed(columns.keys().map(String::as_str))
}

/// Returns the first names, shortened, and how many more there are.
pub(super) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(LISTED);
    let mut shown: Vec<String> =
        names.take(LISTED).map(|name| if name.is_empty() { "\"\"".into() } else { printable(name, 64) }).collect();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

/// The columns of a row.
pub type RowColumns = Map<String, Value>;
