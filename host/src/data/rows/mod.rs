//! Rows of a dataset: JSON lines, one JSON array, Parquet or plain text, packed or not, in one
//! file or in a folder of shards. What a file is follows from its bytes, not from its name; only
//! plain text, which could be anything, says so by `.txt`.

mod columns;
mod folder;
mod json;
mod packed;
mod parquet;
mod text;

use super::{Dataset, Error, Result};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Where a row stands: a file, and the line in it, or the place in its array or table, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    file: Arc<Path>,
    line: usize,
}

impl Place {
    /// The error of a row that can't be used.
    pub fn wrong(&self, detail: impl Into<String>) -> Error {
        Error::Row { path: self.file.to_path_buf(), line: self.line, detail: detail.into() }
    }

    #[cfg(test)]
    pub(super) fn first() -> Self {
        Self { file: Path::new("test").into(), line: 1 }
    }
}

/// A row and where it stands.
pub(super) type Row = (Place, Map<String, Value>);

/// Numbers the rows of one file.
struct File(Arc<Path>);

impl File {
    fn new(path: &Path) -> Self {
        Self(path.into())
    }

    fn place(&self, line: usize) -> Place {
        Place { file: self.0.clone(), line }
    }

    /// The error of a file that can't be used as a whole.
    fn wrong(&self, detail: impl Into<String>) -> Error {
        Error::Dataset { path: self.0.to_path_buf(), detail: detail.into() }
    }
}

/// Reads a dataset's files, and all files of its folders of shards.
///
/// # Errors
/// Names the file and the row that is no JSON object or has not the columns that were named, what
/// is damaged, or what a folder holds instead of data.
pub(super) fn read(dataset: &Dataset) -> Result<Vec<Row>> {
    let io = |path: &Path, source| Error::Io { path: path.to_owned(), source };
    let mut rows = Vec::new();
    for path in &dataset.files {
        let folder = path.metadata().map_err(|e| io(path, e))?.is_dir();
        for file in if folder { folder::shards(path)? } else { vec![path.clone()] } {
            rows.extend(rows_of(&file, std::fs::read(&file).map_err(|e| io(&file, e))?)?);
        }
    }
    let mut rows = some(Path::new(&dataset.to_string()), rows)?;
    columns::rename(&mut rows, &dataset.columns)?;
    Ok(rows)
}

/// The same from bytes at hand; `path` stands in the errors.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Row>> {
    some(path, rows_of(path, bytes.to_vec())?)
}

fn some(path: &Path, rows: Vec<Row>) -> Result<Vec<Row>> {
    if rows.is_empty() { Err(File::new(path).wrong("holds no rows")) } else { Ok(rows) }
}

/// What some editors begin a text in UTF-8 with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

fn rows_of(path: &Path, bytes: Vec<u8>) -> Result<Vec<Row>> {
    let file = File::new(path);
    let limit = packed::limit(bytes.len());
    let bytes = packed::unpack(&file, bytes, limit)?;
    if bytes.starts_with(parquet::MAGIC) {
        return parquet::rows(&file, bytes, limit);
    }
    let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    if folder::kind(path) == Some("txt") { text::rows(&file, text) } else { json::rows(&file, text) }
}

/// Names of a row's columns, for errors.
pub(super) fn names(columns: &Map<String, Value>) -> String {
    if columns.is_empty() { "none".to_owned() } else { columns.keys().cloned().collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests;
