//! Rows of a dataset's file: JSON lines, or one JSON array.

use super::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// A row and where it stands: its line, or its place in the array, from 1.
pub(super) type Row = (usize, Map<String, Value>);

/// Reads a dataset's file; empty lines are passed over.
///
/// # Errors
/// Names the file and the line that is no JSON object.
pub(super) fn read(path: &Path) -> Result<Vec<Row>> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    if path.metadata().map_err(io)?.is_dir() {
        return Err(Error::Dataset { path: path.to_owned(), detail: "is a folder; a dataset is a file of JSON lines".into() });
    }
    parse(path, &std::fs::read(path).map_err(io)?)
}

/// The same from bytes at hand; `path` stands in the errors.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Row>> {
    let rows =
        if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[') { array(path, bytes)? } else { lines(path, bytes)? };
    if rows.is_empty() {
        return Err(Error::Dataset { path: path.to_owned(), detail: "holds no rows".into() });
    }
    Ok(rows)
}

fn array(path: &Path, bytes: &[u8]) -> Result<Vec<Row>> {
    let rows: Vec<Value> = serde_json::from_slice(bytes)
        .map_err(|e| Error::Dataset { path: path.to_owned(), detail: format!("is not a JSON array: {e}") })?;
    rows.into_iter().enumerate().map(|(i, value)| object(path, i + 1, value)).collect()
}

fn lines(path: &Path, bytes: &[u8]) -> Result<Vec<Row>> {
    let wrong = |line: usize, detail: String| Error::Row { path: path.to_owned(), line: line + 1, detail };
    let mut rows = Vec::new();
    for (i, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let text = std::str::from_utf8(line).map_err(|_| wrong(i, "is not UTF-8 text".into()))?;
        if text.trim().is_empty() {
            continue;
        }
        let value = serde_json::from_str(text).map_err(|e| {
            // serde_json counts lines too, and here there is but one.
            let said = e.to_string();
            let said = said.split(" at line ").next().unwrap_or_default();
            wrong(i, format!("is not a line of JSON: {said} at column {}", e.column()))
        })?;
        rows.push(object(path, i + 1, value)?);
    }
    Ok(rows)
}

fn object(path: &Path, line: usize, value: Value) -> Result<Row> {
    match value {
        Value::Object(columns) => Ok((line, columns)),
        _ => Err(Error::Row { path: path.to_owned(), line, detail: "is not a JSON object".into() }),
    }
}

/// Names of a row's columns, for errors.
pub(super) fn names(columns: &Map<String, Value>) -> String {
    if columns.is_empty() { "none".to_owned() } else { columns.keys().cloned().collect::<Vec<_>>().join(", ") }
}
