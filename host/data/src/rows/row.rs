//! Rows of a dataset, and their locations.

use super::super::Error;
use crate::config::{printable, printable_path};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Maximum length in bytes of an error about a row or file, since it may quote contents.
const LONGEST_DETAIL: usize = 2048;

/// Maximum number of names in an error.
const LISTED: usize = 16;

/// Location of a row: a file, and the line in it, or the index in its array or table, from 1.
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

    /// Returns an error with the location of the row that caused it.
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

/// Row with its location.
pub(crate) type LocatedRow = (Location, RowColumns);

/// File whose rows are located.
#[derive(Debug)]
pub(super) struct DatasetFile(pub(super) Arc<Path>);

impl DatasetFile {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.into())
    }

    pub(super) fn place(&self, line: usize) -> Location {
        Location { file: self.0.clone(), line }
    }

    /// Returns the error of a file that can't be used.
    pub(super) fn file_error(&self, detail: impl Into<String>) -> Error {
        Error::Dataset { path: self.0.to_path_buf(), detail: printable(&detail.into(), LONGEST_DETAIL) }
    }
}

/// Returns whether a row has a column; null counts as missing.
pub(crate) fn has(columns: &Map<String, Value>, name: &str) -> bool {
    columns.get(name).is_some_and(|value| !value.is_null())
}

/// Removes a column from a row and returns it; null counts as missing.
pub(crate) fn take(columns: &mut Map<String, Value>, name: &str) -> Option<Value> {
    columns.shift_remove(name).filter(|value| !value.is_null())
}

/// Returns the error of a row that lacks a column, or whose column is null (`is_there`).
pub(crate) fn absent(is_there: bool, name: &str) -> String {
    match is_there {
        true => format!("column {name:?} is null, or has bytes that are not text"),
        false => format!("has no column {name:?}"),
    }
}

/// Usual names of prompt columns and of answer columns.
const ASKED: [&str; 9] = ["question", "problem", "instruction", "query", "input", "text", "content", "title", "q"];

const ANSWERED: [&str; 7] = ["answer", "response", "output", "solution", "target", "label", "a"];

/// Columns that already mean something under their own names.
const MEANINGFUL: [&str; 4] = ["prompt", "completion", "chosen", "rejected"];

/// Completes an error about a row without the `lacking` columns, which are the prompt, the answer or both: suggests which of its columns
/// could be used instead and, if `may_build`, a prompt template.
pub(crate) fn advice(columns: &Map<String, Value>, lacking: &[&str], may_build: bool) -> String {
    let is_plain = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c));
    let is_free = |name: &str| is_plain(name) && !MEANINGFUL.contains(&name);
    let texts: Vec<&str> =
        columns.iter().filter(|(name, value)| value.is_string() && is_free(name)).map(|(name, _)| &**name).collect();
    let usual = |names: &[&'static str]| names.iter().find(|name| texts.contains(*name)).copied();
    let asked = usual(&ASKED).or_else(|| texts.iter().find(|name| !ANSWERED.contains(name)).copied());
    if lacking.contains(&"prompt") && asked.is_none() {
        return String::new();
    }
    let instead = |name: &&str| {
        let own = if *name == "prompt" { asked } else { usual(&ANSWERED) };
        own.map(|own| format!("{name}={own}"))
    };
    let named: Vec<String> = lacking.iter().filter_map(instead).collect();
    if named.is_empty() {
        return String::new();
    }
    let built = asked.filter(|_| may_build).map(|asked| format!(", or build prompts: --prompt-template '{{{asked}}}'"));
    format!("; to read others as such: --columns {}{}", named.join(","), built.unwrap_or_default())
}

/// Returns the names of a row's columns, for errors.
pub(crate) fn names(columns: &Map<String, Value>) -> String {
    listed(columns.keys().map(String::as_str))
}

/// Lists the first names, shortened, and the number of others.
pub(super) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(LISTED);
    let mut shown: Vec<String> =
        names.take(LISTED).map(|name| if name.is_empty() { "\"\"".into() } else { printable(name, 64) }).collect();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

/// Columns of a row.
pub type RowColumns = Map<String, Value>;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn advice_names_columns_for_what_is_lacking_and_for_nothing_else() {
        let of = |row: Value, lacking: &[&str]| advice(row.as_object().unwrap(), lacking, false);
        let both = ["prompt", "completion"];
        let named = |columns: &str| format!("; to read others as such: --columns {columns}");
        assert_eq!(of(json!({"q": "1 + 1?", "a": "2"}), &both), named("prompt=q,completion=a"));
        assert_eq!(
            of(json!({"id": "x", "question": "1 + 1?", "answer": "2"}), &both),
            named("prompt=question,completion=answer")
        );
        assert_eq!(of(json!({"a": "2", "prompt": "1 + 1?"}), &["completion"]), named("completion=a"));
        assert_eq!(of(json!({"completion": "2", "body": "1 + 1?"}), &["prompt"]), named("prompt=body"));
        // What has a meaning, or can't be told, is not renamed.
        assert_eq!(of(json!({"completion": "2", "id": 3}), &["prompt"]), "");
        assert_eq!(of(json!({"prompt": "1 + 1?", "body": "2"}), &["completion"]), "");
        assert_eq!(of(json!({"a": "2"}), &both), "");
        let built = advice(json!({"q": "1 + 1?"}).as_object().unwrap(), &["prompt"], true);
        assert_eq!(built, named("prompt=q, or build prompts: --prompt-template '{q}'"));
    }
}
