//! Limits on the size of a dataset and each of its rows, so that a file can't exhaust memory.

use super::row::DatasetFile;
use crate::Result;
use indicatif::HumanBytes;

/// Maximum size of a row in bytes: its line, its value in a JSON array, its lines in a CSV table, its document, or a Parquet
/// row's texts and values.
pub(super) const ROW: u64 = 16 << 20;

/// Maximum number of values in a row, including those in lists and objects.
pub(crate) const VALUES: u64 = 1 << 20;

/// Approximate memory of a value besides its text.
pub(super) const VALUE: u64 = 96;

/// Memory of a row besides its values, including spare room in the growing list of rows.
const EMPTY_ROW: u64 = 256;

/// A file may always take this much memory, and beyond that this multiple of its size: a dataset is text, which no compression
/// makes a hundred times smaller.
const ALWAYS: u64 = 1 << 30;
const TIMES: u64 = 100;

/// Memory that a packed file may always take: it takes as long to read as what it is unpacked to.
const ALWAYS_PACKED: u64 = 256 << 20;

/// Memory that rows may take per byte of text they were read from, beyond what a file may always take. Short rows and lists of
/// tokens take nearly that much; lists of digits would take more than twice as much.
const A_BYTE: u64 = 20;

/// A table may always have this much text, and beyond that [`TIMES`] its size. A table may name one long text in all of its rows, each of
/// which takes time.
const ALWAYS_TEXT: u64 = 64 << 20;

/// Returns the maximum memory for a file of this many bytes.
pub(super) fn limit(size: u64) -> u64 {
    ALWAYS.max(TIMES.saturating_mul(size))
}

/// Returns the maximum size of what a file of this many bytes is unpacked to.
pub(super) fn unpacked_limit(size: u64) -> u64 {
    ALWAYS_PACKED.max(TIMES.saturating_mul(size))
}

/// The part of a file's limit that its rows have not used yet.
pub(super) struct FileMemoryBudget {
    limit: u64,
    taken: u64,
    /// Maximum bytes of text, and those that were counted so far.
    most_text: u64,
    text: u64,
    /// Bytes of text that rows were read from, and their number.
    read: u64,
    rows: u64,
}

impl FileMemoryBudget {
    /// Returns the budget of a file of this many bytes.
    pub(super) fn for_file_size(size: u64) -> Self {
        Self { most_text: ALWAYS_TEXT.max(TIMES.saturating_mul(size)), ..Self::new(limit(size)) }
    }

    /// Returns a budget of this much memory, however much text there is.
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, taken: 0, most_text: u64::MAX, text: 0, read: 0, rows: 0 }
    }

    /// Counts text of a table's rows.
    ///
    /// # Errors
    /// If it is far more than the table has bytes.
    pub(super) fn text(&mut self, file: &DatasetFile, bytes: u64) -> Result<()> {
        self.text = self.text.saturating_add(bytes);
        if self.text <= self.most_text {
            return Ok(());
        }
        let most = HumanBytes(self.most_text);
        Err(file.file_error(format!(
            "has more than {most} of text, more than {TIMES} times its size, so its rows repeat the same text; write it as JSON lines"
        )))
    }

    /// Reserves memory for a row of this many bytes.
    ///
    /// # Errors
    /// If the rows of the file would exceed its limit.
    pub(super) fn row(&mut self, file: &DatasetFile, bytes: u64) -> Result<()> {
        self.taken = self.taken.saturating_add(bytes).saturating_add(EMPTY_ROW);
        if self.taken > self.limit { Err(file.file_error(too_large(self.limit))) } else { Ok(()) }
    }

    /// Reserves memory for a row of this many bytes that was read from so much text.
    ///
    /// # Errors
    /// Also if the rows would take far more memory than their text.
    pub(super) fn row_of(&mut self, file: &DatasetFile, text: usize, bytes: u64) -> Result<()> {
        self.read = self.read.saturating_add(text as u64);
        self.rows = self.rows.saturating_add(1);
        self.row(file, bytes)?;
        // Rows of a few bytes are many, but not damaged.
        let rows = self.rows.saturating_mul(EMPTY_ROW + 2 * VALUE);
        let limit = ALWAYS.max(A_BYTE.saturating_mul(self.read).saturating_add(rows));
        if self.taken > limit { Err(file.file_error(too_large(limit))) } else { Ok(()) }
    }
}

/// Describes a file that exceeds [`limit`].
pub(super) fn too_large(limit: u64) -> String {
    let limit = HumanBytes(limit);
    format!("takes more than {limit} in memory, more text than a file of its size can hold; it may be damaged")
}

/// Describes a row that exceeds [`VALUES`].
pub(super) fn many_values() -> String {
    format!("has more than {VALUES} values, the maximum for a row")
}

/// Describes a row that exceeds [`ROW`].
pub(super) fn long_row() -> String {
    format!("is longer than {}, the maximum for a row", HumanBytes(ROW))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn rows_of_text_may_take_less_than_what_was_packed() {
        let file = DatasetFile::new(Path::new("x"));
        let rows = |text: usize, values: u64| {
            let mut budget = FileMemoryBudget::new(limit(72 << 20));
            (0..72).try_for_each(|_| budget.row_of(&file, text, values * VALUE)).map_err(|e| e.to_string())
        };
        // A megabyte of digits and commas, and of tokens in five digits.
        assert!(rows(1 << 20, 1 << 19).unwrap_err().contains("more than 1.00 GiB in memory"));
        assert!(rows(1 << 20, (1 << 20) / 6).is_ok());
        let mut packed = FileMemoryBudget::new(limit(72 << 20));
        assert!((0..72).try_for_each(|_| packed.row(&file, (1 << 19) * VALUE)).is_ok());
    }
}
