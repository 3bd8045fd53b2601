//! Splits a table into the texts of its records without parsing fields.

use super::super::bounds::{FileMemoryBudget, ROW, long_row};
use super::super::json::RowText;
use super::super::row::DatasetFile;
use super::super::{Location, RowColumns};
use super::{CsvByteReader, CsvReader, warn_of_no_messages};
use crate::Result;
use memchr::{memchr, memchr3};
use std::collections::BTreeSet;
use std::io::BufRead;
use std::sync::{Arc, Once};

/// Columns of a table, which are needed to parse a record's text.
#[derive(Debug)]
pub(in crate::rows) struct CsvHeader {
    names: Vec<String>,
    delimiter: u8,
}

/// Splits a stream into a table's records. Empty lines are skipped.
pub(in crate::rows) struct Records<'a> {
    bytes: CsvByteReader<'a>,
    delimiter: u8,
}

/// Parser state at the end of a buffer.
#[derive(Clone, Copy, PartialEq)]
enum CsvFieldState {
    /// At the beginning of a field, where a quote would open.
    Begin,
    Field,
    Quotes,
    /// After a quote within quotes, which closes them unless another one follows.
    Quote,
}

impl CsvFieldState {
    /// Scans a record up to the line break that ends it. Returns the number of bytes, and whether the record ends there.
    fn pass(&mut self, bytes: &[u8], delimiter: u8) -> (usize, bool) {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            *self = match (*self, *byte) {
                (Self::Begin, b'"') | (Self::Quote, b'"') => Self::Quotes,
                (Self::Begin | Self::Quote | Self::Field, byte) if byte == delimiter => Self::Begin,
                (Self::Begin | Self::Quote | Self::Field, b'\r' | b'\n') => return (at, true),
                (Self::Begin | Self::Quote, _) => Self::Field,
                (Self::Field, _) => {
                    at += memchr3(delimiter, b'\r', b'\n', &bytes[at..]).unwrap_or(bytes.len() - at);
                    continue;
                }
                (Self::Quotes, _) => match memchr(b'"', &bytes[at..]) {
                    Some(quote) => {
                        at += quote;
                        Self::Quote
                    }
                    None => return (bytes.len(), false),
                },
            };
            at += 1;
        }
        (at, false)
    }
}

impl<'a> Records<'a> {
    /// Reads a stream that begins at this offset of the file. Also returns the table's columns; `None` if the table is empty.
    ///
    /// # Errors
    /// If the first row does not name the columns.
    pub(in crate::rows) fn new(
        file: &'a DatasetFile,
        from: &'a mut dyn BufRead,
        delimiter: u8,
        at: u64,
    ) -> Result<(Self, Option<Arc<CsvHeader>>)> {
        let mut records = Self { bytes: CsvByteReader::new(file, from, at), delimiter };
        let Some(first) = records.next_row()? else { return Ok((records, None)) };
        let mut text = &first.text[..];
        let mut reader = CsvReader::new(file, &mut text, delimiter);
        reader.record()?;
        let names = reader.header(&first.place)?;
        Ok((records, Some(Arc::new(CsvHeader { names, delimiter }))))
    }

    /// Returns the next record's text; `None` at the end.
    pub(in crate::rows) fn next_row(&mut self) -> Result<Option<RowText>> {
        let bytes = &mut self.bytes;
        if !bytes.skip_empty_lines()? {
            return Ok(None);
        }
        let (place, at, mut text, mut within) = (bytes.file.place(bytes.line), bytes.at, Vec::new(), CsvFieldState::Begin);
        loop {
            let seen = bytes.seen()?;
            if seen.is_empty() && within == CsvFieldState::Quotes {
                return Err(place.row_error(super::UNCLOSED));
            }
            let at_end = seen.is_empty();
            let (length, ended) = within.pass(seen, self.delimiter);
            text.extend_from_slice(&seen[..length]);
            if text.len() as u64 > ROW {
                return Err(place.row_error(format!("{}; are its quotes closed?", long_row())));
            }
            bytes.pass(length)?;
            if ended || at_end {
                return Ok(Some(RowText { place, at, text, column: None }));
            }
        }
    }
}

impl CsvHeader {
    /// Parses a record.
    ///
    /// # Errors
    /// If it has more or fewer fields than the table has columns, or a field is not text.
    pub(in crate::rows) fn parse(&self, file: &DatasetFile, place: &Location, mut text: &[u8]) -> Result<RowColumns> {
        static SAID: Once = Once::new();
        let mut reader = CsvReader::new(file, &mut text, self.delimiter);
        reader.bytes.line = place.line;
        if reader.record()?.is_none() {
            return Err(place.row_error("has no values"));
        }
        let mut no_messages = BTreeSet::new();
        let (columns, bytes) = reader.row(place, &self.names, &mut no_messages)?;
        FileMemoryBudget::new(super::super::bounds::limit(0)).row(file, bytes)?;
        if !no_messages.is_empty() {
            SAID.call_once(|| warn_of_no_messages(file, no_messages));
        }
        Ok(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;
    use std::path::Path;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn records_that_are_cut_out_are_those_that_are_read(
            text in "([ab,\"\r\n]|\r\n|,\"|\",|\"\"){0,40}",
            piece in 1..40_usize,
        ) {
            let (file, text) = (DatasetFile::new(Path::new("t.csv")), format!("x,y\n{text}"));
            let read = rows(&file, &mut text.as_bytes(), b',', &mut FileMemoryBudget::new(1 << 30));
            let mut pieces = BufReader::with_capacity(piece, text.as_bytes());
            let (mut records, header) = Records::new(&file, &mut pieces, b',', 0).unwrap();
            let header = header.unwrap();
            let mut cut = || -> Result<Vec<(Location, RowColumns)>> {
                let mut all = Vec::new();
                while let Some(record) = records.next_row()? {
                    assert_eq!(&text.as_bytes()[record.at as usize..][..record.text.len()], &record.text);
                    all.push((record.place.clone(), header.parse(&file, &record.place, &record.text)?));
                }
                Ok(all)
            };
            match (cut(), read) {
                (Ok(cut), Ok(read)) => prop_assert_eq!(cut, read),
                (Err(cut), Err(read)) => prop_assert_eq!(cut.to_string(), read.to_string()),
                (cut, read) => prop_assert!(false, "{:?} {:?}", cut, read),
            }
        }
    }
}
