//! JSON lines, or one JSON array.

use super::{File, Row};
use crate::data::Result;
use serde_json::Value;

/// Empty lines are passed over.
pub(super) fn rows(file: &File, bytes: &[u8]) -> Result<Vec<Row>> {
    let first = bytes.iter().find(|b| !b.is_ascii_whitespace());
    if first == Some(&b'[') { array(file, bytes) } else { lines(file, bytes) }
}

fn array(file: &File, bytes: &[u8]) -> Result<Vec<Row>> {
    let rows: Vec<Value> = serde_json::from_slice(bytes).map_err(|e| file.wrong(format!("is not a JSON array: {e}")))?;
    rows.into_iter().enumerate().map(|(i, value)| object(file, i + 1, value)).collect()
}

fn lines(file: &File, bytes: &[u8]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (i, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let wrong = |detail: String| file.place(i + 1).wrong(detail);
        let text = std::str::from_utf8(line).map_err(|_| wrong("is not UTF-8 text".into()))?;
        if text.trim().is_empty() {
            continue;
        }
        let value = serde_json::from_str(text).map_err(|e| {
            // serde_json counts lines too, and here there is but one.
            let said = e.to_string();
            let said = said.split(" at line ").next().unwrap_or_default();
            wrong(format!("is not a line of JSON: {said} at column {}", e.column()))
        })?;
        rows.push(object(file, i + 1, value)?);
    }
    Ok(rows)
}

fn object(file: &File, line: usize, value: Value) -> Result<Row> {
    match value {
        Value::Object(columns) => Ok((file.place(line), columns)),
        _ => Err(file.place(line).wrong("is not a JSON object")),
    }
}
