//! Plain text: documents with an ending mark between them, each a row with a column `text`.

use super::{File, Row};
use crate::data::Result;
use serde_json::{Map, Value};

/// What stands between documents, as in TinyStories and in files made for GPT-2.
const END: &str = "<|endoftext|>";

/// The documents without the white space around them; empty ones are passed over. Without a mark
/// the whole file is one.
pub(super) fn rows(file: &File, bytes: &[u8]) -> Result<Vec<Row>> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        file.place(line).wrong("is not UTF-8 text")
    })?;
    let mut rows = Vec::new();
    let mut line = 1;
    for document in text.split(END) {
        let kept = document.trim();
        let before = document.len() - document.trim_start().len();
        if !kept.is_empty() {
            let begins = line + document[..before].matches('\n').count();
            rows.push((file.place(begins), Map::from_iter([("text".to_owned(), Value::String(kept.to_owned()))])));
        }
        line += document.matches('\n').count();
    }
    Ok(rows)
}
