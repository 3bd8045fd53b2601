//! Bounds the memory that a table needs, from its metadata and page headers, before it is read. These are untrusted: a few bytes may claim
//! gigabytes of pages, a million rows, or an endless schema.

use super::super::bounds::{ROW, VALUE, too_large};
use super::super::row::DatasetFile;
use super::compact::{CompactProtocolError, CompactProtocolReader, I32, LIST, STRUCT};
use super::delta;
use crate::Result;
use indicatif::HumanBytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::Page;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{AsBytes, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader, RowGroupReader};
use std::io::Read;

/// Maximum size of the metadata, in bytes.
const METADATA: u64 = 16 << 20;

/// Maximum number of columns and groups, in total and nested.
const COLUMNS: u64 = 4096;
const DEEPEST: usize = 64;

/// Maximum decompressed size of a page in bytes. Writers end a page at 1 MiB, or after a longer row.
const PAGE: u64 = 256 << 20;

/// Maximum size of a page header in bytes, including the minimum and maximum that it may contain.
const HEADER: usize = 1 << 20;

/// Number of rows whose values are decoded at once.
pub(super) const BATCH: usize = 64;

/// Encodings of strings: lengths first (DELTA_LENGTH_BYTE_ARRAY), and prefixes shared with the previous string (DELTA_BYTE_ARRAY).
const LENGTHS: i64 = 6;
const COMMON: i64 = 7;

/// Checks the metadata at the end of a table, since the reader allocates as much as they claim.
pub(super) fn metadata(file: &DatasetFile, table: &impl ChunkReader) -> Result<()> {
    let size = table.len();
    let cut = || damaged(file, "it has no end");
    let end = table.get_bytes(size.checked_sub(8).ok_or_else(cut)?, 8).map_err(|e| damaged(file, e))?;
    let length = end.get(..4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes).ok_or_else(cut)?;
    if end.get(4..) != Some(b"PAR1") {
        return Err(cut());
    }
    let length = u64::from(length);
    if length > METADATA {
        return Err(file.file_error(format!("has {} of metadata; the maximum is {}", HumanBytes(length), HumanBytes(METADATA))));
    }
    let begin = size.checked_sub(8 + length).ok_or_else(cut)?;
    let bytes = table.get_bytes(begin, length as usize).map_err(|e| damaged(file, e))?;
    schema(&mut CompactProtocolReader::new(&bytes)).map_err(|bad| match bad {
        CompactProtocolError::Short => cut(),
        CompactProtocolError::Wrong(said) => file.file_error(format!("is a table with {said}")),
    })
}

/// Walks through all metadata, and counts the elements of the schema, which is the second field.
fn schema(metadata: &mut CompactProtocolReader<'_>) -> std::result::Result<(), CompactProtocolError> {
    let mut last = 0;
    while let Some((number, kind)) = metadata.field(&mut last)? {
        if (number, kind) != (2, LIST) {
            metadata.skip(kind)?;
            continue;
        }
        let (count, kind) = metadata.list()?;
        if count > COLUMNS || kind != STRUCT {
            return Err(CompactProtocolError::Wrong("more than 4096 columns and groups of columns"));
        }
        // Number of remaining children of each open group.
        let mut open: Vec<i64> = Vec::new();
        for _ in 0..count {
            let (mut last, mut children) = (0, 0);
            while let Some((number, kind)) = metadata.field(&mut last)? {
                match (number, kind) {
                    (5, I32) => children = metadata.integer()?,
                    _ => metadata.skip(kind)?,
                }
            }
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            if children > 0 {
                open.push(children);
            }
            if open.len() > DEEPEST {
                return Err(CompactProtocolError::Wrong("column groups nested more than 64 deep"));
            }
            while open.last().is_some_and(|left| *left <= 0) {
                open.pop();
            }
        }
    }
    Ok(())
}

/// Sizes of a column chunk, known before decoding.
#[derive(Default)]
struct ColumnChunkSize {
    /// Decompressed size of all pages, of the largest page, and of the dictionary.
    all: u64,
    largest: u64,
    dictionary: u64,
    values: u64,
    /// Whether there are pages with the encodings [`LENGTHS`] or [`COMMON`].
    lengths: bool,
}

/// Checks the headers of all pages: their total and simultaneous sizes must fit into `limit`. Returns the row groups and columns that
/// [`lengths`] must check.
pub(super) fn pages(
    file: &DatasetFile,
    table: &impl ChunkReader,
    metadata: &ParquetMetaData,
    limit: u64,
) -> Result<Vec<(usize, usize)>> {
    let too_large = || Err(file.file_error(too_large(limit)));
    let mut with_lengths = Vec::new();
    let (mut all, mut values, mut rows) = (0_u64, 0_u64, 0_u64);
    for (i, group) in metadata.row_groups().iter().enumerate() {
        let count = u64::try_from(group.num_rows()).map_err(|_| damaged(file, "its number of rows is negative"))?;
        rows = rows.saturating_add(count);
        let mut at_once = 0_u64;
        for (j, column) in group.columns().iter().enumerate() {
            let part = part(file, table, column)?;
            (all, values) = (all.saturating_add(part.all), values.saturating_add(part.values));
            at_once = at_once.saturating_add(part.dictionary).saturating_add(part.largest);
            if part.lengths {
                with_lengths.push((i, j));
            }
            if all.saturating_add(values.saturating_mul(VALUE)) > limit || at_once > limit {
                return too_large();
            }
        }
        if rows.saturating_mul(VALUE) > limit {
            return too_large();
        }
    }
    Ok(with_lengths)
}

fn part(file: &DatasetFile, table: &impl ChunkReader, column: &ColumnChunkMetaData) -> Result<ColumnChunkSize> {
    let wrong = || damaged(file, format!("the pages of column {} are not where it says", column.column_path()));
    let begin = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    let (begin, length) =
        (u64::try_from(begin).map_err(|_| wrong())?, u64::try_from(column.compressed_size()).map_err(|_| wrong())?);
    let end = begin.checked_add(length).filter(|end| *end <= table.len()).ok_or_else(wrong)?;
    let (mut at, mut part) = (begin, ColumnChunkSize::default());
    while at < end {
        let (page, header) = header(file, table, at, end)?;
        at += header as u64;
        if u64::from(page.packed) > end - at {
            return Err(wrong());
        }
        let unpacked = match column.compression() {
            // The reader decompresses these completely, whatever size the header claims.
            Compression::GZIP(_) => gzip(file, table, at, &page)?,
            Compression::LZ4 => u64::from(page.unpacked).max(u64::from(page.packed).saturating_mul(255)),
            _ => u64::from(page.unpacked),
        };
        at += u64::from(page.packed);
        if unpacked > PAGE {
            let most = HumanBytes(PAGE);
            return Err(file.file_error(format!("has a page of {} in a column; the maximum is {most}", HumanBytes(unpacked))));
        }
        part.all = part.all.saturating_add(unpacked);
        part.values = part.values.saturating_add(page.values);
        part.lengths |= [LENGTHS, COMMON].contains(&page.encoding);
        let place = if page.dictionary { &mut part.dictionary } else { &mut part.largest };
        *place = unpacked.max(*place);
    }
    Ok(part)
}

/// Contents of a page header.
#[derive(Default)]
struct ParquetPageHeader {
    unpacked: u32,
    packed: u32,
    dictionary: bool,
    values: u64,
    encoding: i64,
}

/// Parses the header at an offset; also returns its length.
fn header(file: &DatasetFile, table: &impl ChunkReader, at: u64, end: u64) -> Result<(ParquetPageHeader, usize)> {
    let mut length = 4096;
    loop {
        let there = usize::try_from(end - at).map_or(length, |there| there.min(length));
        let bytes = table.get_bytes(at, there).map_err(|e| damaged(file, e))?;
        let mut compact = CompactProtocolReader::new(&bytes);
        match page(&mut compact) {
            Ok(page) => return Ok((page, compact.at())),
            Err(CompactProtocolError::Short) if there == length && length < HEADER => length *= 16,
            Err(CompactProtocolError::Short) => return Err(damaged(file, "a page's header has no end")),
            Err(CompactProtocolError::Wrong(said)) => return Err(damaged(file, format!("a page's header has {said}"))),
        }
    }
}

fn page(header: &mut CompactProtocolReader<'_>) -> std::result::Result<ParquetPageHeader, CompactProtocolError> {
    let size = |n: i64| u32::try_from(n).map_err(|_| CompactProtocolError::Wrong("a negative size"));
    let (mut page, mut last) = (ParquetPageHeader::default(), 0);
    while let Some((number, kind)) = header.field(&mut last)? {
        match (number, kind) {
            (2, I32) => page.unpacked = size(header.integer()?)?,
            (3, I32) => page.packed = size(header.integer()?)?,
            (5 | 7 | 8, STRUCT) => {
                page.dictionary = number == 7;
                // In a version 2 data page, the encoding follows the numbers of nulls and rows.
                let encoding = if number == 8 { 4 } else { 2 };
                let mut last = 0;
                while let Some((number, kind)) = header.field(&mut last)? {
                    match kind {
                        I32 if number == 1 => page.values = size(header.integer()?)?.into(),
                        I32 if number == encoding => page.encoding = header.integer()?,
                        _ => header.skip(kind)?,
                    }
                }
            }
            _ => header.skip(kind)?,
        }
    }
    Ok(page)
}

/// Returns the decompressed size of a gzip page, counting only slightly beyond the maximum.
fn gzip(file: &DatasetFile, table: &impl ChunkReader, at: u64, page: &ParquetPageHeader) -> Result<u64> {
    let bytes = table.get_bytes(at, page.packed as usize).map_err(|e| damaged(file, e))?;
    let unpacked = flate2::read::MultiGzDecoder::new(&bytes[..]).take(PAGE + 1);
    // Damage is reported when the page is read.
    Ok(std::io::copy(&mut { unpacked }, &mut std::io::sink()).unwrap_or(0).max(page.unpacked.into()))
}

/// Checks how many strings a column's pages claim to hold, since the decoder allocates that many, and that they expand to at most `limit`
/// bytes. Returns the expanded size.
pub(super) fn lengths(file: &DatasetFile, group: &dyn RowGroupReader, column: usize, limit: u64) -> Result<u64> {
    let descriptor = group.metadata().column(column).column_descr_ptr();
    let levels = [descriptor.max_rep_level(), descriptor.max_def_level()];
    let mut pages = group.get_column_page_reader(column).map_err(|e| damaged(file, e))?;
    let mut expanded = 0_u64;
    while let Some(page) = pages.get_next_page().map_err(|e| damaged(file, e))? {
        let encoding = page.encoding();
        if ![Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY].contains(&encoding) {
            continue;
        }
        let texts = match &page {
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                buf.get(*def_levels_byte_len as usize + *rep_levels_byte_len as usize..)
            }
            Page::DataPage { buf, .. } => levels.iter().filter(|most| **most > 0).try_fold(&buf[..], |rest, _| {
                let length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
                rest.get(4 + length as usize..)
            }),
            Page::DictionaryPage { .. } => continue,
        };
        let (mut texts, most) = (CompactProtocolReader::new(texts.unwrap_or_default()), page.num_values().into());
        let wrong = |bad: CompactProtocolError| match bad {
            CompactProtocolError::Short => damaged(file, "a page's strings have no end"),
            CompactProtocolError::Wrong(said) => damaged(file, format!("a page {said}")),
        };
        if encoding == Encoding::DELTA_LENGTH_BYTE_ARRAY {
            delta::count(&mut texts, most).map_err(wrong)?;
            continue;
        }
        expanded = expanded.saturating_add(delta::expanded(&mut texts, most).map_err(wrong)?);
        if expanded > limit {
            return Err(file.file_error(too_large(limit)));
        }
    }
    Ok(expanded)
}

/// Checks the strings of lists with dictionaries, since a few bytes may repeat a long string a million times. Reads the columns of a row
/// group in which a row could thereby become too long, without creating the strings.
pub(super) fn lists(file: &DatasetFile, group: &dyn RowGroupReader, first: usize) -> Result<()> {
    for (i, column) in group.metadata().columns().iter().enumerate() {
        let repeated = column.column_descr().max_rep_level() > 0;
        if !repeated || column.dictionary_page_offset().is_none() {
            continue;
        }
        let long = match group.get_column_reader(i).map_err(|e| damaged(file, e))? {
            ColumnReader::ByteArrayColumnReader(reader) => long_list(reader, column.column_descr().max_def_level()),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => long_list(reader, column.column_descr().max_def_level()),
            _ => continue,
        };
        if let Some(row) = long.map_err(|e| damaged(file, e))? {
            let (column, most) = (column.column_path(), HumanBytes(ROW));
            return Err(file
                .place(first + row)
                .row_error(format!("has more than {most} in its column {column}, the maximum for a row")));
        }
    }
    Ok(())
}

/// Returns the first row, from 1, whose strings exceed the maximum size of a row.
fn long_list<T: DataType>(mut column: ColumnReaderImpl<T>, defined: i16) -> std::result::Result<Option<usize>, ParquetError> {
    let (mut values, mut before) = (Vec::new(), 0);
    let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
    loop {
        values.clear();
        definitions.clear();
        repetitions.clear();
        let (records, ..) = column.read_records(BATCH, Some(&mut definitions), Some(&mut repetitions), &mut values)?;
        if records == 0 {
            return Ok(None);
        }
        let mut lengths = values.iter().map(|value| value.as_bytes().len() as u64);
        let (mut row, mut bytes) = (before, 0_u64);
        for (definition, repetition) in definitions.iter().zip(&repetitions) {
            if *repetition == 0 {
                (row, bytes) = (row + 1, 0);
            }
            if *definition == defined {
                bytes = bytes.saturating_add(lengths.next().unwrap_or(0));
            }
            if bytes > ROW {
                return Ok(Some(row));
            }
        }
        before += records;
    }
}

pub(super) fn damaged(file: &DatasetFile, said: impl ToString) -> crate::Error {
    let said = said.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    file.file_error(format!("is truncated, damaged, or not supported Parquet: {said}"))
}
