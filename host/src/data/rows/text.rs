//! Plain text: documents separated by a marker; each is a row with a column `text`.

use super::bounds::{Budget, ROW, VALUE, long_row};
use super::{File, Row};
use crate::data::Result;
use serde_json::{Map, Value};
use std::io::{BufRead, Read};

/// The separator of documents, as in TinyStories and in files made for GPT-2.
const END: &str = "<|endoftext|>";

/// Reads the documents, without surrounding white space; empty ones are skipped. Without a separator, the whole file is one.
pub(super) fn rows(file: &File, from: &mut dyn BufRead, budget: &mut Budget) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let (mut line, mut text) = (1, Vec::new());
    loop {
        let last = document(file, from, line, &mut text)?;
        let whole = std::str::from_utf8(&text).map_err(|e| {
            let before = text[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count();
            file.place(line + before).wrong("is not UTF-8 text")
        })?;
        let kept = whole.trim();
        if !kept.is_empty() {
            let before = whole.len() - whole.trim_start().len();
            let begins = line + whole[..before].matches('\n').count();
            budget.row(file, VALUE + kept.len() as u64)?;
            rows.push((file.place(begins), Map::from_iter([("text".to_owned(), Value::String(kept.to_owned()))])));
        }
        if last {
            return Ok(rows);
        }
        line += whole.matches('\n').count();
        text.clear();
    }
}

/// Reads up to the next separator, which is dropped. Returns whether there was none.
fn document(file: &File, from: &mut dyn BufRead, line: usize, text: &mut Vec<u8>) -> Result<bool> {
    let most = ROW + END.len() as u64;
    loop {
        let left = most.saturating_sub(text.len() as u64) + 1;
        let read = (&mut *from).take(left).read_until(b'>', text).map_err(|e| file.wrong(e.to_string()))?;
        let marked = text.ends_with(END.as_bytes());
        if marked {
            text.truncate(text.len() - END.len());
        }
        if text.len() as u64 > if marked || read == 0 { ROW } else { most } {
            return Err(file
                .place(line)
                .wrong(format!("is the beginning of a document that {}; put {END} between documents", long_row())));
        }
        if marked || read == 0 {
            return Ok(!marked);
        }
    }
}
