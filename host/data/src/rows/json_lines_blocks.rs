//! Reads a large JSON lines file on several ranks: each rank reads every n-th block and shares what it found.

use super::BYTE_ORDER_MARK;
use super::bounds::{ROW, long_row};
use super::folder;
use super::json::{JsonRowReader, RowText};
use super::row::DatasetFile;
use crate::config::files;
use crate::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Maximum size of a block, one of which each rank reads per round, and of all blocks of a round with up to 256 ranks.
pub(super) const BLOCK: (u64, u64) = (4 << 20, 64 << 20);

/// Number of bytes that are inspected to detect the format of a file.
const BEGIN: u64 = 4096;

/// Ranks that read a dataset together.
pub trait DatasetRanks {
    /// Error of reading, or of the communication between ranks.
    type Error: From<Error>;

    /// Returns this rank, from 0, and the number of ranks.
    fn ranks(&self) -> (usize, usize);

    /// Gathers a value from each rank, in order of rank. Collective operation.
    ///
    /// # Errors
    /// If a rank has failed.
    fn gather<T: Serialize + DeserializeOwned>(&self, what: &'static str, own: T) -> std::result::Result<Vec<T>, Self::Error>;
}

/// A single rank.
pub struct SingleRank;

impl DatasetRanks for SingleRank {
    type Error = Error;

    fn ranks(&self) -> (usize, usize) {
        (0, 1)
    }

    fn gather<T>(&self, _what: &'static str, own: T) -> Result<Vec<T>> {
        Ok(vec![own])
    }
}

/// Layout of a JSON lines file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct JsonLinesLayout {
    /// Offset of the first line.
    pub(super) first: u64,
    /// Size of the file.
    pub(super) size: u64,
    /// Size of a block.
    pub(super) block: u64,
}

impl JsonLinesLayout {
    /// Returns the layout of a file of more than `small` bytes, if it is certainly JSON lines.
    pub(super) fn from_path(path: &Path, small: u64, block: u64) -> Option<Self> {
        if ["csv", "tsv", "txt"].iter().any(|table| folder::kind(path) == Some(table)) {
            return None;
        }
        let file = files::open(path).ok()?;
        let size = file.metadata().ok()?.len();
        let mut begin = Vec::new();
        file.take(BEGIN).read_to_end(&mut begin).ok()?;
        let text = begin.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&begin);
        let first = (begin.len() - text.len()) as u64;
        let is_object = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        (size > small && is_object).then_some(Self { first, size, block })
    }

    /// Returns the number of rounds in which this many ranks read the file.
    pub(super) fn rounds(&self, ranks: usize) -> u64 {
        self.size.div_ceil(self.block).div_ceil(ranks as u64)
    }
}

/// Lines that begin in one block of a file.
#[derive(Default)]
pub(super) struct JsonLinesBlock {
    /// Offset of the first line.
    at: u64,
    bytes: Vec<u8>,
    /// Whether the last line exceeds the maximum size of a row, and was not read completely.
    truncated: bool,
}

impl JsonLinesBlock {
    /// Reads a block. Its last line is read to the end; a line that began earlier belongs to the previous block.
    pub(super) fn read(path: &Path, lines: JsonLinesLayout, number: u64) -> io::Result<Self> {
        let end = number.saturating_add(1).saturating_mul(lines.block).min(lines.size);
        let mut at = number.saturating_mul(lines.block).max(lines.first);
        if at >= end {
            return Ok(Self::default());
        }
        let mut file = files::open(path)?;
        let before = u64::from(at > lines.first);
        file.seek(SeekFrom::Start(at - before))?;
        let mut file = BufReader::new(file);
        if before > 0 {
            at = at - 1 + (&mut file).take(end + 1 - at).skip_until(b'\n')? as u64;
        }
        let mut bytes = Vec::new();
        (&mut file).take(end.saturating_sub(at)).read_to_end(&mut bytes)?;
        let mut truncated = false;
        if bytes.last().is_some_and(|last| *last != b'\n') {
            let rest = (&mut file).take(ROW + 1).read_until(b'\n', &mut bytes)?;
            truncated = rest as u64 > ROW && !bytes.ends_with(b"\n");
        }
        Ok(Self { at, bytes, truncated })
    }

    /// Returns the number of lines in the block.
    pub(super) fn lines(&self) -> usize {
        self.bytes.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Returns the texts of the rows, with line numbers from 1 within the block, and how reading ended.
    pub(super) fn texts(&self, file: &DatasetFile) -> (Vec<RowText>, Result<()>) {
        let (mut bytes, mut all) = (&self.bytes[..], Vec::new());
        let mut texts = JsonRowReader::from_json_lines(file, &mut bytes, self.at);
        loop {
            match texts.next_row() {
                Ok(Some(text)) => all.push(text),
                Ok(None) if self.truncated => {
                    all.pop();
                    return (all, Err(file.file_error(format!("has a line that {}", long_row()))));
                }
                Ok(None) => return (all, Ok(())),
                Err(error) => return (all, Err(error)),
            }
        }
    }
}
