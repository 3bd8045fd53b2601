//! Plain text: one row with a column `text` per line, as in `datasets`; or, in a file with document separators, one row per document.

use super::bounds::{FileMemoryBudget, ROW, VALUE, long_row};
use super::row::{DatasetFile, LocatedRow};
use crate::Result;
use crate::config::printable_path;
use serde_json::{Map, Value};
use std::io::{BufRead, Cursor, Read};

/// Separator of documents, as in TinyStories and in files for GPT-2.
const END: &str = "<|endoftext|>";

/// Reads the rows of a file; blank lines and empty documents are skipped.
pub(super) fn rows(file: &DatasetFile, from: &mut dyn BufRead, budget: &mut FileMemoryBudget) -> Result<Vec<LocatedRow>> {
    let mut rows = Vec::new();
    let (mut number, mut blank) = (0, 0);
    // Beginning of the file: the first document, if there are separators.
    let mut begin = Some(Vec::new());
    loop {
        let mut line = Vec::new();
        (&mut *from).take(ROW + 2).read_until(b'\n', &mut line).map_err(|e| file.file_error(e.to_string()))?;
        if line.is_empty() {
            break;
        }
        number += 1;
        let is_marked = line.windows(END.len()).any(|part| part == END.as_bytes());
        if let Some(before) = &mut begin {
            before.extend_from_slice(&line);
            if is_marked {
                let before = std::mem::take(before);
                tracing::info!("{}: each document that ends with {END} is a row", printable_path(&file.0));
                return documents(file, &mut Cursor::new(before).chain(from), budget);
            }
        } else if is_marked {
            return Err(file.place(1).row_error(long_document()));
        }
        begin = begin.filter(|before| before.len() as u64 <= ROW);
        let length = line.len() as u64 - u64::from(line.ends_with(b"\n"));
        if length > ROW {
            return Err(file
                .place(number)
                .row_error(format!("is a line that {}; put line breaks between texts, or {END}", long_row())));
        }
        let text = std::str::from_utf8(&line).map_err(|_| file.place(number).row_error("is not UTF-8 text"))?;
        let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
        // Some old programs end lines with a carriage return.
        for own in text.split('\r') {
            if own.trim().is_empty() {
                blank += 1;
                continue;
            }
            budget.row(file, VALUE + own.len() as u64)?;
            rows.push((file.place(number), row(own)));
        }
    }
    if !rows.is_empty() {
        let skipped = if blank == 0 { String::new() } else { format!(", without {blank} blank ones") };
        let (name, count) = (printable_path(&file.0), rows.len());
        tracing::info!("{name}: each of its {count} lines is a row{skipped}; for longer texts, put {END} between documents");
    }
    Ok(rows)
}

fn row(text: &str) -> Map<String, Value> {
    Map::from_iter([("text".to_owned(), Value::String(text.to_owned()))])
}

fn long_document() -> String {
    format!("is the beginning of a document that {}; put {END} between documents", long_row())
}

/// Reads documents, without surrounding whitespace.
fn documents(file: &DatasetFile, from: &mut dyn BufRead, budget: &mut FileMemoryBudget) -> Result<Vec<LocatedRow>> {
    let mut rows = Vec::new();
    let (mut line, mut text) = (1, Vec::new());
    loop {
        let last = document(file, from, line, &mut text)?;
        let whole = std::str::from_utf8(&text).map_err(|e| {
            let before = text[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count();
            file.place(line + before).row_error("is not UTF-8 text")
        })?;
        let kept = whole.trim();
        if !kept.is_empty() {
            let before = whole.len() - whole.trim_start().len();
            let begins = line + whole[..before].matches('\n').count();
            budget.row(file, VALUE + kept.len() as u64)?;
            rows.push((file.place(begins), row(kept)));
        }
        if last {
            return Ok(rows);
        }
        line += whole.matches('\n').count();
        text.clear();
    }
}

/// Reads up to the next separator, which is dropped. Returns whether the file ended first.
fn document(file: &DatasetFile, from: &mut dyn BufRead, line: usize, text: &mut Vec<u8>) -> Result<bool> {
    let most = ROW + END.len() as u64;
    loop {
        let left = most.saturating_sub(text.len() as u64) + 1;
        let read = (&mut *from).take(left).read_until(b'>', text).map_err(|e| file.file_error(e.to_string()))?;
        let marked = text.ends_with(END.as_bytes());
        if marked {
            text.truncate(text.len() - END.len());
        }
        if text.len() as u64 > if marked || read == 0 { ROW } else { most } {
            return Err(file.place(line).row_error(long_document()));
        }
        if marked || read == 0 {
            return Ok(!marked);
        }
    }
}
