//! JSON lines, or one JSON array. Each row is cut out of the stream before it is parsed, so that none exceeds the maximum size of
//! a row.

use super::bounds::{Budget, ROW, VALUE, VALUES, long_row};
use super::{File, Row};
use crate::config::json;
use crate::data::Result;
use serde_json::{Map, Value};
use std::io::{self, BufRead, Read};

/// Reads JSON lines. Empty lines are skipped.
pub(super) fn rows(file: &File, from: &mut dyn BufRead, budget: &mut Budget) -> Result<Vec<Row>> {
    let mut reader = Reader { file, from, budget, line: 1, column: 0, text: Vec::new() };
    match reader.next_visible()? {
        Some(b'[') => reader.array(),
        _ => reader.lines(),
    }
}

struct Reader<'a> {
    file: &'a File,
    from: &'a mut dyn BufRead,
    budget: &'a mut Budget,
    /// The current position, with the line from 1; counted only between rows.
    line: usize,
    column: usize,
    /// The current row.
    text: Vec<u8>,
}

/// A search for the end of an array element.
#[derive(Default)]
struct Scan {
    depth: usize,
    text: bool,
    escaped: bool,
}

impl Scan {
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

impl Reader<'_> {
    fn io(&self, error: &io::Error) -> crate::data::Error {
        self.file.wrong(error.to_string())
    }

    /// Skips white space, but not the byte after it.
    fn next_visible(&mut self) -> Result<Option<u8>> {
        loop {
            let seen = match self.from.fill_buf() {
                Ok([]) => return Ok(None),
                Ok(seen) => seen,
                Err(e) => return Err(self.file.wrong(e.to_string())),
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
            self.from.consume(passed);
            if next.is_some() {
                return Ok(next);
            }
        }
    }

    fn lines(&mut self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        while self.next_visible()?.is_some() {
            self.text.clear();
            let read = (&mut *self.from).take(ROW + 1).read_until(b'\n', &mut self.text);
            read.map_err(|e| self.io(&e))?;
            let place = self.file.place(self.line);
            if self.text.len() as u64 > ROW {
                return Err(place.wrong(long_row()));
            }
            let text = std::str::from_utf8(&self.text).map_err(|_| place.wrong("is not UTF-8 text"))?;
            let line = text.strip_suffix('\n').unwrap_or(text);
            let (row, bytes) = object(line).map_err(|e| place.wrong(e.of_line(self.column)))?;
            self.budget.row_of(self.file, text.len(), bytes)?;
            rows.push((place, row));
            self.line += usize::from(self.text.ends_with(b"\n"));
            self.column = 0;
        }
        Ok(rows)
    }

    fn array(&mut self) -> Result<Vec<Row>> {
        self.from.consume(1);
        let mut rows = Vec::new();
        if self.next_visible()? == Some(b']') {
            self.from.consume(1);
        } else {
            while self.element(&mut rows)? {}
        }
        match self.next_visible()? {
            None => Ok(rows),
            Some(_) => Err(self.file.wrong("is not a JSON array: something follows its end")),
        }
    }

    /// Reads one value. Also returns whether another follows.
    fn element(&mut self, rows: &mut Vec<Row>) -> Result<bool> {
        self.next_visible()?;
        self.text.clear();
        let place = self.file.place(rows.len() + 1);
        let mut scan = Scan::default();
        let end = loop {
            let seen = match self.from.fill_buf() {
                Ok([]) => return Err(self.file.wrong("is not a JSON array: it is truncated")),
                Ok(seen) => seen,
                Err(e) => return Err(self.file.wrong(e.to_string())),
            };
            let at = seen.iter().position(|b| scan.ends(*b));
            let part = &seen[..at.unwrap_or(seen.len())];
            if (self.text.len() + part.len()) as u64 > ROW {
                return Err(place.wrong(long_row()));
            }
            self.text.extend_from_slice(part);
            let (passed, end) = (part.len() + usize::from(at.is_some()), at.map(|at| seen[at]));
            self.from.consume(passed);
            if let Some(end) = end {
                break end;
            }
        };
        let text = std::str::from_utf8(&self.text).map_err(|_| place.wrong("is not UTF-8 text"))?;
        let (row, bytes) = object(text).map_err(|e| place.wrong(e.of_value()))?;
        self.budget.row_of(self.file, text.len(), bytes)?;
        rows.push((place, row));
        match end {
            b',' => Ok(true),
            b']' => Ok(false),
            _ => Err(self.file.wrong("is not a JSON array: it ends with }")),
        }
    }
}

/// Why a text is not a row.
enum Unfit {
    Json(serde_json::Error),
    NoObject,
}

impl Unfit {
    /// serde_json counts lines too, but there is only one here.
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

/// Returns the columns of a row, and roughly how much memory they take.
fn object(text: &str) -> std::result::Result<(Map<String, Value>, u64), Unfit> {
    match json::sized(text, VALUES).map_err(Unfit::Json)? {
        (Value::Object(columns), size) => Ok((columns, size.values * VALUE + size.text)),
        _ => Err(Unfit::NoObject),
    }
}
