//! How large a dataset and each of its rows may be, so that a file can't take all memory before somebody looks at it.

use super::File;
use crate::data::Result;
use indicatif::HumanBytes;

/// Bytes of a row: of its line, of its value in a JSON array, of its lines in a CSV table, of its document, or of a Parquet row's
/// texts and values.
pub(super) const ROW: u64 = 16 << 20;

/// Values of a row, those within lists and objects included.
pub(super) const VALUES: u64 = 1 << 20;

/// Memory that a value takes beside its text, roughly.
pub(super) const VALUE: u64 = 96;

/// Memory that a row takes beside its values, with the room that a growing list of rows has.
const EMPTY_ROW: u64 = 256;

/// A file may always become this much, unpacked and in memory, and beyond it this many times its own size: a dataset is text,
/// which no packing makes a hundred times smaller.
const ALWAYS: u64 = 1 << 30;
const TIMES: u64 = 100;

/// Memory that rows may take for each byte of text that they were read from, beyond what a file may always become. Short rows and
/// lists of tokens take nearly as much; lists of digits would take twice as much and more.
const A_BYTE: u64 = 20;

/// How much a file of so many bytes may become.
pub(super) fn limit(size: u64) -> u64 {
    ALWAYS.max(TIMES.saturating_mul(size))
}

/// What of a file's limit its rows have not taken yet.
pub(super) struct Budget {
    limit: u64,
    taken: u64,
    /// Bytes of text that rows were read from.
    read: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, taken: 0, read: 0 }
    }

    /// Takes memory for a row of so many bytes.
    ///
    /// # Errors
    /// If the rows of the file would have more than its limit.
    pub(super) fn row(&mut self, file: &File, bytes: u64) -> Result<()> {
        self.taken = self.taken.saturating_add(bytes).saturating_add(EMPTY_ROW);
        if self.taken > self.limit { Err(file.wrong(too_large(self.limit))) } else { Ok(()) }
    }

    /// The same for a row that was read from so many bytes of text.
    ///
    /// # Errors
    /// Also if the rows would have far more memory than text.
    pub(super) fn row_of(&mut self, file: &File, text: usize, bytes: u64) -> Result<()> {
        self.read = self.read.saturating_add(text as u64);
        self.row(file, bytes)?;
        let limit = ALWAYS.max(A_BYTE.saturating_mul(self.read));
        if self.taken > limit { Err(file.wrong(too_large(limit))) } else { Ok(()) }
    }
}

/// What is said of a file that becomes more than [`limit`].
pub(super) fn too_large(limit: u64) -> String {
    let limit = HumanBytes(limit);
    format!("takes more than {limit} in memory, more text than a file of its size can hold; it may be damaged")
}

/// What is said of a row that has more than [`VALUES`].
pub(super) fn many_values() -> String {
    format!("has more than {VALUES} values, the maximum for a row")
}

/// What is said of a row that has more than [`ROW`].
pub(super) fn long_row() -> String {
    format!("is longer than {}, the maximum for a row", HumanBytes(ROW))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn rows_of_text_may_take_less_than_what_was_packed() {
        let file = File::new(Path::new("x"));
        let rows = |text: usize, values: u64| {
            let mut budget = Budget::new(limit(72 << 20));
            (0..72).try_for_each(|_| budget.row_of(&file, text, values * VALUE)).map_err(|e| e.to_string())
        };
        // A megabyte of digits and commas, and of tokens in five digits.
        assert!(rows(1 << 20, 1 << 19).unwrap_err().contains("more than 1.00 GiB in memory"));
        assert!(rows(1 << 20, (1 << 20) / 6).is_ok());
        let mut packed = Budget::new(limit(72 << 20));
        assert!((0..72).try_for_each(|_| packed.row(&file, (1 << 19) * VALUE)).is_ok());
    }
}
