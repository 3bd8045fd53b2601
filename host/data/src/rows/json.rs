//! JSON lines, or one JSON array. Each row is cut out of the stream before it is parsed, to enforce the maximum size of a row.

use super::Location;
use super::bounds::{FileMemoryBudget, ROW, VALUE, VALUES, long_row};
use super::row::{DatasetFile, LocatedRow};
use crate::Result;
use crate::config::json;
use memchr::memchr2;
use serde_json::{Map, Value};
use std::io::{BufRead, Read};
use std::sync::Once;

/// Reads all rows.
pub(super) fn rows(file: &DatasetFile, mut texts: JsonRowReader<'_>, budget: &mut FileMemoryBudget) -> Result<Vec<LocatedRow>> {
    let mut rows = Vec::new();
    while let Some(text) = texts.next_row()? {
        let (row, bytes) = text.parse()?;
        budget.row_of(file, text.text.len(), bytes)?;
        rows.push((text.place, row));
    }
    Ok(rows)
}

/// Text of a row.
pub(super) struct RowText {
    pub(super) place: Location,
    /// Offset in the file.
    pub(super) at: u64,
    /// Bytes of the row, including its line break.
    pub(super) text: Vec<u8>,
    /// Column of the line at which the row begins; `None` in an array.
    pub(super) column: Option<usize>,
}

impl RowText {
    /// Parses the row; returns its columns and their approximate memory.
    pub(super) fn parse(&self) -> Result<(Map<String, Value>, u64)> {
        let place = &self.place;
        let text = std::str::from_utf8(&self.text).map_err(|_| place.row_error("is not UTF-8 text"))?;
        match self.column {
            Some(column) => {
                object(text.strip_suffix('\n').unwrap_or(text), Some(place)).map_err(|e| place.row_error(e.of_line(column)))
            }
            None => object(text, Some(place)).map_err(|e| place.row_error(e.of_value())),
        }
    }
}

/// Position of a reader between two rows.
enum JsonReadState {
    Begin,
    Lines,
    /// In an array, after this many elements and this byte.
    Array(usize, u8),
}

/// Splits a stream into the texts of rows: the elements of an array, or JSON lines without the empty ones.
pub(super) struct JsonRowReader<'a> {
    file: &'a DatasetFile,
    from: &'a mut dyn BufRead,
    between: JsonReadState,
    /// Offset of the next byte.
    at: u64,
    /// Current line, from 1, and column; updated only between rows.
    line: usize,
    column: usize,
}

/// Search for the end of an array element.
#[derive(Default)]
struct JsonElementScan {
    depth: usize,
    text: bool,
    escaped: bool,
}

impl JsonElementScan {
    /// Returns the index of the first byte after the element, if it is among these bytes.
    fn end_in(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.text && !self.escaped {
                at += memchr2(b'"', b'\\', &bytes[at..])?;
            }
            if self.ends(bytes[at]) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    /// Returns whether a byte is the first one after the element.
    fn ends(&mut self, byte: u8) -> bool {
        if self.text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.text = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.text = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' if self.depth > 0 => self.depth -= 1,
            b']' | b'}' | b',' if self.depth == 0 => return true,
            _ => {}
        }
        false
    }
}

impl<'a> JsonRowReader<'a> {
    /// Reads a stream that begins at this offset of the file.
    pub(super) fn new(file: &'a DatasetFile, from: &'a mut dyn BufRead, at: u64) -> Self {
        Self { file, from, between: JsonReadState::Begin, at, line: 1, column: 0 }
    }

    /// Reads JSON lines, the first of which is at this offset.
    pub(super) fn from_json_lines(file: &'a DatasetFile, from: &'a mut dyn BufRead, at: u64) -> Self {
        Self { between: JsonReadState::Lines, ..Self::new(file, from, at) }
    }

    /// Returns the next row's text; `None` at the end.
    pub(super) fn next_row(&mut self) -> Result<Option<RowText>> {
        match self.between {
            JsonReadState::Begin => {
                if self.next_visible()? != Some(b'[') {
                    self.between = JsonReadState::Lines;
                    return self.next_line();
                }
                self.consume(1);
                if self.next_visible()? == Some(b']') {
                    self.consume(1);
                    return self.end();
                }
                self.element(0).map(Some)
            }
            JsonReadState::Lines => self.next_line(),
            JsonReadState::Array(rows, b',') => self.element(rows).map(Some),
            JsonReadState::Array(_, b']') => self.end(),
            JsonReadState::Array(..) => Err(self.file.file_error("is not a JSON array: it ends with }")),
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.from.consume(bytes);
        self.at += bytes as u64;
    }

    /// Skips whitespace; returns the next byte without consuming it.
    fn next_visible(&mut self) -> Result<Option<u8>> {
        loop {
            let seen = match self.from.fill_buf() {
                Ok([]) => return Ok(None),
                Ok(seen) => seen,
                Err(e) => return Err(self.file.file_error(e.to_string())),
            };
            let space = seen.iter().position(|b| !b.is_ascii_whitespace());
            let passed = &seen[..space.unwrap_or(seen.len())];
            match passed.iter().rposition(|b| *b == b'\n') {
                Some(last) => {
                    self.line += passed.iter().filter(|b| **b == b'\n').count();
                    self.column = passed.len() - last - 1;
                }
                None => self.column += passed.len(),
            }
            let (passed, next) = (passed.len(), space.map(|at| seen[at]));
            self.consume(passed);
            if next.is_some() {
                return Ok(next);
            }
        }
    }

    fn next_line(&mut self) -> Result<Option<RowText>> {
        if self.next_visible()?.is_none() {
            return Ok(None);
        }
        let mut text = Vec::new();
        let read = (&mut *self.from).take(ROW + 1).read_until(b'\n', &mut text);
        read.map_err(|e| self.file.file_error(e.to_string()))?;
        let (place, at, column) = (self.file.place(self.line), self.at, Some(self.column));
        if text.len() as u64 > ROW {
            return Err(place.row_error(long_row()));
        }
        self.at += text.len() as u64;
        self.line += usize::from(text.ends_with(b"\n"));
        self.column = 0;
        Ok(Some(RowText { place, at, text, column }))
    }

    /// Returns the element after the first `rows` ones.
    fn element(&mut self, rows: usize) -> Result<RowText> {
        self.next_visible()?;
        let (place, at, mut text) = (self.file.place(rows + 1), self.at, Vec::new());
        let mut scan = JsonElementScan::default();
        loop {
            let seen = match self.from.fill_buf() {
                Ok([]) => return Err(self.file.file_error("is not a JSON array: it is truncated")),
                Ok(seen) => seen,
                Err(e) => return Err(self.file.file_error(e.to_string())),
            };
            let end = scan.end_in(seen);
            let part = &seen[..end.unwrap_or(seen.len())];
            if (text.len() + part.len()) as u64 > ROW {
                return Err(place.row_error(long_row()));
            }
            text.extend_from_slice(part);
            let (passed, end) = (part.len() + usize::from(end.is_some()), end.map(|at| seen[at]));
            self.consume(passed);
            if let Some(end) = end {
                self.between = JsonReadState::Array(rows + 1, end);
                return Ok(RowText { place, at, text, column: None });
            }
        }
    }

    /// Checks that nothing follows an array.
    fn end(&mut self) -> Result<Option<RowText>> {
        match self.next_visible()? {
            None => Ok(None),
            Some(_) => Err(self.file.file_error("is not a JSON array: something follows its end")),
        }
    }
}

/// Reason why a text is not a row.
pub(super) enum RowTextError {
    Json(serde_json::Error),
    NoObject,
}

impl RowTextError {
    /// Returns serde_json's message without its line number: there is only one line.
    fn said(error: &serde_json::Error) -> String {
        error.to_string().rsplit_once(" at line ").map_or_else(|| error.to_string(), |(said, _)| said.to_owned())
    }

    fn of_line(&self, before: usize) -> String {
        match self {
            Self::NoObject => "is not a JSON object".into(),
            Self::Json(e) if e.is_data() => Self::said(e),
            Self::Json(e) => format!("is not a line of JSON: {} at column {}", Self::said(e), before + e.column()),
        }
    }

    fn of_value(&self) -> String {
        match self {
            Self::Json(e) if !e.is_data() => format!("is not JSON: {}", Self::said(e)),
            other => other.of_line(0),
        }
    }
}

/// Parses a row; returns its columns and their approximate memory.
///
/// NaN and infinite numbers, which Python writes for missing numbers, become null; a warning names the first `place` of such a number, if
/// given.
pub(super) fn object(text: &str, place: Option<&Location>) -> std::result::Result<(Map<String, Value>, u64), RowTextError> {
    static SAID: Once = Once::new();
    let read = json::sized(text, VALUES).or_else(|error| {
        let Some(text) = without_odd_numbers(text).filter(|_| error.is_syntax()) else { return Err(error) };
        let read = json::sized(&text, VALUES)?;
        if let Some(place) = place {
            let said = "has NaN or infinite numbers; they are read as null, here and in other rows";
            SAID.call_once(|| tracing::warn!("{}", place.row_error(said)));
        }
        Ok(read)
    });
    match read.map_err(RowTextError::Json)? {
        (Value::Object(columns), size) => Ok((columns, size.values * VALUE + size.text)),
        _ => Err(RowTextError::NoObject),
    }
}

/// Python's notation for numbers that JSON lacks, longest first.
const ODD_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Returns a JSON text with null for NaN and infinite numbers; `None` if it has none outside strings.
fn without_odd_numbers(text: &str) -> Option<String> {
    let (mut other, mut begin, mut at) = (String::new(), 0, 0);
    let (bytes, mut is_text) = (text.as_bytes(), false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if is_text => at += 1,
            b'"' => is_text = !is_text,
            b'-' | b'I' | b'N' if !is_text => {
                if let Some(word) = ODD_NUMBERS.into_iter().find(|word| bytes[at..].starts_with(word.as_bytes())) {
                    other += &text[begin..at];
                    other += "null";
                    at += word.len();
                    begin = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if begin == 0 {
        return None;
    }
    Some(other + &text[begin..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_python_writes_and_json_lacks_are_null() {
        let read = |text: &str| object(text, None).map(|(columns, _)| Value::Object(columns).to_string()).ok();
        for (text, expected) in [
            (r#"{"a": NaN, "b": 1}"#, Some(r#"{"a":null,"b":1}"#)),
            (r#"{"a": [-Infinity,Infinity , NaN]}"#, Some(r#"{"a":[null,null,null]}"#)),
            (r#"{"NaN": "-Infinity \" NaN", "x": NaN}"#, Some(r#"{"NaN":"-Infinity \" NaN","x":null}"#)),
            (r#"{"a": -1, "b": "NaN"}"#, Some(r#"{"a":-1,"b":"NaN"}"#)),
            (r#"{"a": nan}"#, None),
            (r#"{"a": NaNN}"#, None),
            (r#"{"a": --Infinity}"#, None),
            (r#"{"a": NaN"#, None),
            (r#"{NaN: 1}"#, None),
            ("NaN", None),
            (r#"{"é": NaN, "a": "\\"}"#, Some(r#"{"é":null,"a":"\\"}"#)),
        ] {
            assert_eq!(read(text).as_deref(), expected, "{text}");
        }
    }
}
