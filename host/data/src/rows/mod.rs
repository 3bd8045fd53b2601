//! Rows of a dataset: JSON lines, one JSON array, Parquet, CSV, TSV or plain text, optionally compressed, in one file or in a folder of
//! shards. The format is detected from a file's bytes rather than its name; only plain text, CSV and TSV, which could be anything, need the
//! extensions `.txt`, `.csv` and `.tsv`.

mod bounds;
mod columns;
mod csv;
mod decompression;
mod folder;
mod json;
mod json_lines_blocks;
mod parquet;
mod row;
mod spill;
mod table;
mod text;

pub(super) use bounds::VALUES;
pub use json_lines_blocks::DatasetRanks;
pub use json_lines_blocks::SingleRank;
pub use row::{Location, RowColumns};
pub use table::DatasetTable;

use super::{Dataset, Error, Result};
use crate::config::files;
use bounds::FileMemoryBudget;
use bytes::Bytes;
use decompression::DecompressedFile;
use row::DatasetFile;
pub(super) use row::{LocatedRow, absent, advice, has, names, take};
use std::fs;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads a dataset's files, including all files in its folders of shards.
///
/// # Errors
/// Names the file and row that is unreadable or lacks one of the requested columns; or what is damaged, too large, or not a file; or what a
/// folder holds instead of data.
pub(super) fn read(dataset: &Dataset) -> Result<Vec<LocatedRow>> {
    let mut rows = Vec::new();
    for FileWindow { files, rows: own } in windows(dataset)? {
        let mut all = Vec::new();
        for file in files {
            let opened = files::open(&file).map_err(|source| Error::Io { path: file.clone(), source })?;
            all.extend(rows_of(&file, RawFile::Disk(opened))?);
        }
        match own {
            Some(own) => rows.extend(all.into_iter().skip(own.start).take(own.len())),
            None => rows.append(&mut all),
        }
    }
    some(Path::new(&dataset.to_string()), !rows.is_empty())?;
    rows.iter_mut().try_for_each(|(place, row)| columns::rename(place, row, &dataset.columns))?;
    Ok(rows)
}

/// Returns the size of a dataset's files on disk in bytes, including all files in its folders of shards.
///
/// # Errors
/// Names a file that can't be opened, or what a folder holds instead of data.
pub fn size_on_disk(dataset: &Dataset) -> Result<u64> {
    let size = |path: &PathBuf| fs::metadata(path).map_err(|source| Error::Io { path: path.clone(), source });
    files_of(&dataset.files)?.iter().map(|path| Ok(size(path)?.len())).sum()
}

/// Files that are read one after another, and which of their rows are used.
struct FileWindow {
    files: Vec<PathBuf>,
    /// Range of used rows, counted over all files; `None` for all rows.
    rows: Option<Range<usize>>,
}

/// Returns the parts of a dataset in reading order.
fn windows(dataset: &Dataset) -> Result<Vec<FileWindow>> {
    if dataset.parts.is_empty() {
        return Ok(vec![FileWindow { files: files_of(&dataset.files)?, rows: None }]);
    }
    let mut counts: Vec<(Range<usize>, usize)> = Vec::new();
    let mut windows = Vec::new();
    for part in &dataset.parts {
        let files = files_of(dataset.files.get(part.files.clone()).unwrap_or_default())?;
        let Some(slice) = part.slice else {
            windows.push(FileWindow { files, rows: None });
            continue;
        };
        let known = counts.iter().find(|(of, _)| *of == part.files).map(|(_, count)| *count);
        let count = match known {
            Some(count) => count,
            None => files.iter().map(|file| count(file)).sum::<Result<usize>>()?,
        };
        counts.push((part.files.clone(), count));
        let rows = slice.rows(count).map_err(|detail| DatasetFile::new(Path::new(&dataset.to_string())).file_error(detail))?;
        windows.push(FileWindow { files, rows: Some(rows) });
    }
    Ok(windows)
}

/// Returns the number of rows in a file.
fn count(path: &Path) -> Result<usize> {
    let opened = files::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let mut count = 0;
    content_as(path, RawFile::Disk(opened), true, |part| {
        match part {
            FileContent::Rows(rows) => count += rows.len(),
            FileContent::Texts(_, mut texts, ..) => {
                while texts.next_row()?.is_some() {
                    count += 1;
                }
            }
            FileContent::Records(_, mut records, ..) => {
                while records.next_row()?.is_some() {
                    count += 1;
                }
            }
        }
        Ok(())
    })?;
    Ok(count)
}

/// Returns files, with folders replaced by their shards; checks that all can be opened.
fn files_of(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in given {
        all.extend(if path.is_dir() { folder::shards(path)? } else { vec![path.clone()] });
    }
    // Check before reading the first, which may take a while.
    for path in &all {
        files::open(path).map_err(|source| Error::Io { path: path.clone(), source })?;
    }
    Ok(all)
}

/// Reads the rows of a file in memory; errors name `path`.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<LocatedRow>> {
    let rows = rows_of(path, RawFile::Memory(bytes.to_vec().into()))?;
    some(path, !rows.is_empty())?;
    Ok(rows)
}

/// Rejects a dataset without rows.
fn some(path: &Path, has_rows: bool) -> Result<()> {
    if has_rows { Ok(()) } else { Err(DatasetFile::new(path).file_error("has no rows")) }
}

/// Number of bytes that are decompressed after an unusable row, to detect whether the file is damaged.
const FURTHER: u64 = 64 << 20;

/// UTF-8 byte order mark, which some editors write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// File on disk or in memory.
enum RawFile {
    Disk(fs::File),
    Memory(Bytes),
}

impl RawFile {
    fn size(&self) -> io::Result<u64> {
        match self {
            Self::Disk(file) => file.metadata().map(|is| is.len()),
            Self::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    fn stream(&self) -> Box<dyn Read + '_> {
        match self {
            Self::Disk(file) => Box::new(file),
            Self::Memory(bytes) => Box::new(&bytes[..]),
        }
    }
}

fn rows_of(path: &Path, raw: RawFile) -> Result<Vec<LocatedRow>> {
    let mut all = Vec::new();
    let take = |part: FileContent<'_>| {
        all.extend(match part {
            FileContent::Rows(rows) => rows,
            FileContent::Texts(file, texts, _, budget) => json::rows(file, texts, budget)?,
            FileContent::Records(file, mut records, header, _) => {
                let mut rows = Vec::new();
                while let Some(text) = records.next_row()? {
                    rows.push((text.place.clone(), header.parse(file, &text.place, &text.text)?));
                }
                rows
            }
        });
        Ok(())
    };
    content_of(path, raw, take)?;
    Ok(all)
}

/// Content of a file, or part of it.
enum FileContent<'a> {
    /// The next rows.
    Rows(Vec<LocatedRow>),
    /// Reader of the rows' texts, and the file's size if the file contains the texts as they are.
    Texts(&'a DatasetFile, json::JsonRowReader<'a>, Option<u64>, &'a mut FileMemoryBudget),
    /// Reader of a table's records, with its columns, if rows are only located; and the file's size if the file contains the texts as they
    /// are.
    Records(&'a DatasetFile, csv::Records<'a>, Arc<csv::CsvHeader>, Option<u64>),
}

/// Detects a file's format and passes its content on.
fn content_of(path: &Path, raw: RawFile, take: impl FnMut(FileContent<'_>) -> Result<()>) -> Result<()> {
    content_as(path, raw, false, take)
}

/// Detects a file's format and passes its content on; with `located`, CSV and TSV tables as records rather than rows.
fn content_as(path: &Path, raw: RawFile, located: bool, mut take: impl FnMut(FileContent<'_>) -> Result<()>) -> Result<()> {
    let file = DatasetFile::new(path);
    let io = |source| Error::Io { path: path.to_owned(), source };
    let size = raw.size().map_err(io)?;
    let limit = bounds::limit(size);
    let DecompressedFile { mut stream, packed, begin } =
        decompression::unpack(&file, raw.stream(), bounds::unpacked_limit(size))?;
    let budget = &mut FileMemoryBudget::for_file_size(size);
    if begin.starts_with(parquet::MAGIC) {
        let each = |rows| take(FileContent::Rows(rows));
        if packed {
            return parquet::rows(&file, parquet::whole(&file, stream)?, limit, budget, each);
        }
        drop(stream);
        return match raw {
            RawFile::Disk(disk) => parquet::rows(&file, disk, limit, budget, each),
            RawFile::Memory(bytes) => parquet::rows(&file, bytes, limit, budget, each),
        };
    }
    let mut mark = 0;
    if begin.starts_with(BYTE_ORDER_MARK) {
        stream.fill_buf().map_err(io)?;
        mark = BYTE_ORDER_MARK.len();
        stream.consume(mark);
    }
    let stored = (!packed && matches!(raw, RawFile::Disk(_))).then_some(size);
    let read = match folder::kind(path) {
        Some(kind @ ("csv" | "tsv")) if located => {
            let delimiter = if kind == "csv" { b',' } else { b'\t' };
            csv::Records::new(&file, &mut *stream, delimiter, mark as u64).and_then(|(records, header)| match header {
                Some(header) => take(FileContent::Records(&file, records, header, stored)),
                None => Ok(()),
            })
        }
        Some("csv") => csv::rows(&file, &mut *stream, b',', budget).and_then(|rows| take(FileContent::Rows(rows))),
        Some("tsv") => csv::rows(&file, &mut *stream, b'\t', budget).and_then(|rows| take(FileContent::Rows(rows))),
        Some("txt") => text::rows(&file, &mut *stream, budget).and_then(|rows| take(FileContent::Rows(rows))),
        _ => take(FileContent::Texts(&file, json::JsonRowReader::new(&file, &mut *stream, mark as u64), stored, budget)),
    };
    read.map_err(|error| match io::copy(&mut stream.take(if packed { FURTHER } else { 0 }), &mut io::sink()) {
        Ok(_) => error,
        // Invalid content may be the result of decompressing a damaged file.
        Err(damage) => file.file_error(damage.to_string()),
    })
}

#[cfg(test)]
mod tests;
