//! Limits on the size of a dataset and of its rows, so that a file can't exhaust memory.

use super::row::DatasetFile;
use crate::Result;
use indicatif::HumanBytes;

/// Maximum size of a row in bytes: of its line, its value in a JSON array, its lines in a CSV table, its document, or its texts and values
/// in a Parquet table.
pub(super) const ROW: u64 = 16 << 20;

/// Maximum number of values in a row, including nested ones.
pub(crate) const VALUES: u64 = 1 << 20;

/// Approximate memory of a value in addition to its text.
pub(super) const VALUE: u64 = 96;

/// Memory of a row in addition to its values, including spare capacity of the list of rows.
const EMPTY_ROW: u64 = 256;

/// Memory that any file may use; beyond that, the limit is [`TIMES`] the file's size. Datasets are text, which does not compress by a
/// factor of a hundred.
const ALWAYS: u64 = 1 << 30;
const TIMES: u64 = 100;

/// Decompressed size that any file may have: reading it takes as long as reading an uncompressed file of that size.
const ALWAYS_PACKED: u64 = 256 << 20;

/// Memory that rows may use per byte of text beyond what any file may use. Short rows and lists of tokens need nearly as much; lists of
/// digits would need more than twice as much.
const A_BYTE: u64 = 20;

/// Text that any table may have; beyond that, the limit is [`TIMES`] its size. A table may refer to one long text in all rows, and each
/// reference takes time.
const ALWAYS_TEXT: u64 = 64 << 20;

/// Returns the maximum memory for a file of this many bytes.
pub(super) fn limit(size: u64) -> u64 {
    ALWAYS.max(TIMES.saturating_mul(size))
}

/// Returns the maximum decompressed size of a file of this many bytes.
pub(super) fn unpacked_limit(size: u64) -> u64 {
    ALWAYS_PACKED.max(TIMES.saturating_mul(size))
}

/// Memory budget of a file.
pub(super) struct FileMemoryBudget {
    limit: u64,
    taken: u64,
    /// Maximum number of bytes of text, and number counted so far.
    most_text: u64,
    text: u64,
    /// Number of bytes of text that rows were read from, and number of rows.
    read: u64,
    rows: u64,
}

impl FileMemoryBudget {
    /// Returns the budget of a file of this many bytes.
    pub(super) fn for_file_size(size: u64) -> Self {
        Self { most_text: ALWAYS_TEXT.max(TIMES.saturating_mul(size)), ..Self::new(limit(size)) }
    }

    /// Returns a budget of this much memory, regardless of the amount of text.
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, taken: 0, most_text: u64::MAX, text: 0, read: 0, rows: 0 }
    }

    /// Counts text in a table's rows.
    ///
    /// # Errors
    /// If the text is far larger than the table.
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

    /// Reserves memory for a row of this many bytes that was read from `text` bytes.
    ///
    /// # Errors
    /// If the rows of the file would exceed its limit, or need far more memory than their text.
    pub(super) fn row_of(&mut self, file: &DatasetFile, text: usize, bytes: u64) -> Result<()> {
        self.read = self.read.saturating_add(text as u64);
        self.rows = self.rows.saturating_add(1);
        self.row(file, bytes)?;
        // Files of very short rows have many, but are not damaged.
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
        // A megabyte of digits and commas, and of five-digit tokens.
        assert!(rows(1 << 20, 1 << 19).unwrap_err().contains("more than 1.00 GiB in memory"));
        assert!(rows(1 << 20, (1 << 20) / 6).is_ok());
        let mut packed = FileMemoryBudget::new(limit(72 << 20));
        assert!((0..72).try_for_each(|_| packed.row(&file, (1 << 19) * VALUE)).is_ok());
    }
}
