//! Random access to a dataset's rows: rows are read again when needed, from their file if it is large and contains them as they are, or
//! else from a copy of their text, in memory or, if it is large, in a temporary file.

mod rounds;

use super::csv::CsvHeader;
use super::json::RowText;
use super::json_lines_blocks::{BLOCK, DatasetRanks, JsonLinesLayout};
use super::row::RowColumns;
use super::row::{DatasetFile, LocatedRow};
use super::spill::Spill;
use super::{FileContent, FileWindow, Location, RawFile, columns, content_as, some, windows};
use crate::config::files;
use crate::{Dataset, Error, Result};
use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum size in bytes of files whose rows are copied, so that changes to them don't affect the run; also the maximum size of all texts
/// kept in memory.
const SMALL: u64 = 16 << 20;

/// Size in bytes, and number, of rows that are parsed together.
const TOGETHER: (usize, usize) = (4 << 20, 4096);

/// Minimum number of rows per thread.
const ROWS_A_THREAD: usize = 256;

/// Table of a dataset's rows.
#[derive(Debug, Default)]
pub struct DatasetTable {
    /// Renamed columns: new name and original name.
    renamed: Vec<(String, String)>,
    segments: Vec<TableSegment>,
    rows: Vec<RowPosition>,
    spill: Spill,
    /// Whether other ranks have read some of the rows.
    shared: bool,
}

/// Options for storing rows and for sharing them between ranks.
struct TableStorageOptions {
    /// Size above which files are read again, and texts are not kept in memory.
    small: u64,
    /// Number of bytes that a rank reads of a shared file at a time.
    block: u64,
    spill: Spill,
}

impl TableStorageOptions {
    /// Returns the default options.
    fn new(peers: &impl DatasetRanks) -> Self {
        let (most, of_all) = BLOCK;
        let block = (of_all / peers.ranks().1 as u64).clamp(most / 16, most);
        Self { small: SMALL, block, spill: Spill::default() }
    }
}

/// Segment of the table: rows of one file.
#[derive(Debug)]
struct TableSegment {
    file: DatasetFile,
    storage: RowTextStorage,
    /// Columns of a CSV or TSV table whose records are stored as they are; otherwise rows are stored as JSON.
    header: Option<Arc<CsvHeader>>,
}

/// Storage of a segment's texts.
#[derive(Debug)]
enum RowTextStorage {
    /// In the dataset's file.
    InFile,
    InMemory(Box<[u8]>),
    /// In the temporary file, from this offset on.
    Spilled(u64),
}

/// Position of a row's text.
#[derive(Clone, Copy, Debug)]
struct RowPosition {
    segment: u32,
    length: u32,
    at: u64,
    line: usize,
    /// Column of the line at which the row begins; `None` in an array, and for rows stored as JSON.
    column: Option<u32>,
    /// Part of the hash of the text.
    check: u64,
}

/// Scan of a dataset, row by row.
struct TableScan<'a, T, J, K> {
    table: DatasetTable,
    judge: &'a J,
    /// Creates the judgement of any row, if rows are only located and not parsed.
    located: Option<fn() -> T>,
    /// Receives the judgements.
    take: K,
    /// Error of the first row that lacks a column.
    lacking: Option<Error>,
    /// Size above which files are read again, and texts are not kept in memory.
    small: u64,
    /// Size of the texts stored so far, in memory or in the temporary file.
    kept: u64,
    /// Range of rows used of the current files; `None` for all.
    window: Option<Range<usize>>,
    /// Number of rows seen of the current files.
    passed: usize,
}

impl DatasetTable {
    /// Reads a dataset, and has each row judged by its index, location and columns, on several threads. Judgements are delivered in the
    /// order of the rows, with some delay. Ranks share the rows of large JSON lines files: each judges some, and receives all judgements.
    ///
    /// # Errors
    /// If something is damaged or too large, or a row lacks a column. One rank may fail while others succeed.
    pub fn read<T: Send + Serialize + DeserializeOwned, P: DatasetRanks>(
        dataset: &Dataset,
        peers: &P,
        judge: impl Fn(usize, &Location, RowColumns) -> T + Sync,
        take: impl FnMut(usize, T),
    ) -> std::result::Result<Self, P::Error> {
        Self::read_with(dataset, peers, judge, take, TableStorageOptions::new(peers))
    }

    /// Locates a dataset's rows, without parsing them if their file contains them as they are. Calls `found` for each row in order, with
    /// some delay.
    ///
    /// # Errors
    /// If something is damaged or too large. A row that is not JSON or lacks a column fails only when it is read.
    pub fn locate<P: DatasetRanks>(
        dataset: &Dataset,
        peers: &P,
        found: impl FnMut(usize),
    ) -> std::result::Result<Self, P::Error> {
        Self::locate_with(dataset, peers, found, TableStorageOptions::new(peers))
    }

    /// Locates a dataset's rows with given sizes, for tests; see [`DatasetTable::locate`].
    fn locate_with<P: DatasetRanks>(
        dataset: &Dataset,
        peers: &P,
        mut found: impl FnMut(usize),
        sizes: TableStorageOptions,
    ) -> std::result::Result<Self, P::Error> {
        let (never, take) = (|_: usize, _: &Location, _: RowColumns| (), |row: usize, ()| found(row));
        let scan = TableScan::new(&never, take, dataset.columns.clone(), sizes.small);
        Self::scanned(dataset, peers, TableScan { located: Some(|| ()), ..scan }, sizes)
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the total size of the rows' texts in bytes.
    pub fn bytes(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.length)).sum()
    }

    /// Returns a hash of the rows' texts, in order, and of the names of renamed columns.
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for name in self.renamed.iter().flat_map(|(name, own)| [name, own]) {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        hash.update((self.renamed.len() as u64).to_le_bytes());
        self.rows.iter().for_each(|row| hash.update(row.check.to_le_bytes()));
        hash.finalize().into()
    }

    /// Reads and judges a dataset's rows with given sizes, for tests; see [`DatasetTable::read`].
    fn read_with<T: Send + Serialize + DeserializeOwned, P: DatasetRanks>(
        dataset: &Dataset,
        peers: &P,
        judge: impl Fn(usize, &Location, RowColumns) -> T + Sync,
        take: impl FnMut(usize, T),
        sizes: TableStorageOptions,
    ) -> std::result::Result<Self, P::Error> {
        Self::scanned(dataset, peers, TableScan::new(&judge, take, dataset.columns.clone(), sizes.small), sizes)
    }

    fn scanned<T, J, K, P: DatasetRanks>(
        dataset: &Dataset,
        peers: &P,
        mut scan: TableScan<'_, T, J, K>,
        TableStorageOptions { small, block, spill }: TableStorageOptions,
    ) -> std::result::Result<Self, P::Error>
    where
        T: Send + Serialize + DeserializeOwned,
        J: Fn(usize, &Location, RowColumns) -> T + Sync,
        K: FnMut(usize, T),
    {
        scan.table.spill = spill;
        for FileWindow { files, rows } in windows(dataset)? {
            let shared: Vec<Option<JsonLinesLayout>> = match rows {
                // The rows of a part are known only when they are read in order.
                Some(_) => vec![None; files.len()],
                None => shared(&files, peers, (small, block))?,
            };
            (scan.window, scan.passed) = (rows, 0);
            for (path, lines) in files.iter().zip(shared) {
                match lines {
                    Some(lines) => scan.rounds(path, lines, peers)?,
                    None => {
                        let opened = files::open(path).map_err(|source| Error::Io { path: path.clone(), source })?;
                        scan.file(path, RawFile::Disk(opened))?;
                    }
                }
            }
        }
        Ok(scan.done(Path::new(&dataset.to_string()))?)
    }

    /// Reads a table from memory and has its rows judged; errors name `path`.
    ///
    /// # Errors
    /// Errors of [`DatasetTable::read`].
    pub fn parse<T: Send>(
        path: &Path,
        bytes: &[u8],
        judge: impl Fn(usize, &Location, RowColumns) -> T + Sync,
        take: impl FnMut(usize, T),
    ) -> Result<Self> {
        let mut scan = TableScan::new(&judge, take, Vec::new(), SMALL);
        scan.file(path, RawFile::Memory(bytes.to_vec().into()))?;
        scan.done(path)
    }

    /// Reads a row again.
    ///
    /// # Errors
    /// If the file has changed.
    pub fn row(&self, row: usize) -> Result<(Location, RowColumns)> {
        let stored = self.rows.get(row).ok_or_else(|| none(row))?;
        let text = self.text(stored)?;
        let shelf = self.segments.get(stored.segment as usize).ok_or_else(|| none(row))?;
        let mut columns = match &shelf.header {
            Some(header) => header.parse(&shelf.file, &text.place, &text.text)?,
            None => text.parse()?.0,
        };
        columns::rename(&text.place, &mut columns, &self.renamed)?;
        Ok((text.place, columns))
    }

    /// Returns the location of a row.
    pub fn place(&self, row: usize) -> Option<Location> {
        let stored = self.rows.get(row)?;
        Some(self.segments.get(stored.segment as usize)?.file.place(stored.line))
    }

    /// Reads the text of a row again.
    fn text(&self, stored: &RowPosition) -> Result<RowText> {
        let shelf = self.segments.get(stored.segment as usize).ok_or_else(|| none(self.rows.len()))?;
        let place = shelf.file.place(stored.line);
        let since = match self.shared {
            true => "has changed since a rank read it first, or is another file on this rank's machine",
            false => "has changed since the run read it first",
        };
        let changed = |_| place.row_error(format!("{since}; start the run again, or resume it with the old file"));
        let text = match &shelf.storage {
            RowTextStorage::InMemory(texts) => texts[stored.at as usize..][..stored.length as usize].to_vec(),
            RowTextStorage::InFile => stored.text(&shelf.file.0).map_err(changed)?,
            RowTextStorage::Spilled(begin) => self.spilled(begin + stored.at, stored)?,
        };
        Ok(RowText { place, at: stored.at, text, column: stored.column.map(|column| column as usize) })
    }

    /// Reads a text from the temporary file.
    fn spilled(&self, at: u64, stored: &RowPosition) -> Result<Vec<u8>> {
        let read = self.spill.read(at, stored.length as usize);
        let read = read.and_then(|text| if check(&text) == stored.check { Ok(text) } else { Err(ErrorKind::InvalidData.into()) });
        read.map_err(|source| Error::Io { path: "the temporary file with the dataset's rows".into(), source })
    }
}

/// Returns the error of an index beyond the rows.
fn none(row: usize) -> Error {
    Error::Dataset { path: "dataset".into(), detail: format!("has no row {row}") }
}

/// Error: a row's text is not at its position any more.
struct StaleRowText;

impl RowPosition {
    /// Reads the text from its file.
    fn text(&self, path: &Path) -> std::result::Result<Vec<u8>, StaleRowText> {
        let mut text = vec![0; self.length as usize];
        let mut read = || {
            let mut file = files::open(path)?;
            file.seek(SeekFrom::Start(self.at))?;
            file.read_exact(&mut text)
        };
        match read() {
            Ok(()) if check(&text) == self.check => Ok(text),
            _ => Err(StaleRowText),
        }
    }
}

/// Returns the part of a text's hash that is stored.
fn check(text: &[u8]) -> u64 {
    let hash: [u8; 32] = Sha256::digest(text).into();
    u64::from_le_bytes(hash[..8].try_into().unwrap_or_default())
}

/// Hash check of a row's text, and the judgement on its columns.
struct RowJudgement<T> {
    check: u64,
    judged: Result<T>,
}

impl<'a, T: Send, J: Fn(usize, &Location, RowColumns) -> T + Sync, K: FnMut(usize, T)> TableScan<'a, T, J, K> {
    fn new(judge: &'a J, take: K, renamed: Vec<(String, String)>, small: u64) -> Self {
        let table = DatasetTable { renamed, ..DatasetTable::default() };
        Self { table, judge, located: None, take, lacking: None, small, kept: 0, window: None, passed: 0 }
    }

    fn done(self, path: &Path) -> Result<DatasetTable> {
        let Self { mut table, lacking, .. } = self;
        some(path, !table.rows.is_empty())?;
        table.rows.shrink_to_fit();
        lacking.map_or(Ok(table), Err)
    }

    /// Counts a row of the current files. Returns whether it is used.
    fn is_used(&mut self) -> bool {
        self.passed += 1;
        self.window.as_ref().is_none_or(|window| window.contains(&(self.passed - 1)))
    }

    fn file(&mut self, path: &Path, raw: RawFile) -> Result<()> {
        let located = self.located.is_some();
        content_as(path, raw, located, |part| match part {
            FileContent::Rows(rows) => self.rows(DatasetFile::new(path), rows),
            // Rows are parsed in small batches, so they need little memory beyond their texts.
            FileContent::Texts(file, mut texts, stored, _) => self.texts(file, || texts.next_row(), stored, None),
            FileContent::Records(file, mut records, header, stored) => {
                self.texts(file, || records.next_row(), stored, Some(&header))
            }
        })
    }

    /// Returns a function that renames a row's columns, then judges it.
    fn judging(&self) -> impl Fn(usize, &Location, RowColumns) -> Result<T> + Sync {
        let (judge, renamed, located) = (self.judge, &self.table.renamed, self.located);
        move |number, place, mut columns| {
            if let Some(judged) = located {
                return Ok(judged());
            }
            columns::rename(place, &mut columns, renamed)?;
            Ok(judge(number, place, columns))
        }
    }

    fn add(&mut self, judged: Result<T>, stored: RowPosition) {
        self.table.rows.push(stored);
        match judged {
            Ok(judged) => (self.take)(self.table.rows.len() - 1, judged),
            Err(error) => {
                self.lacking.get_or_insert(error);
            }
        }
    }

    fn add_segment(&mut self, file: &DatasetFile, kept: Option<Vec<u8>>, header: Option<&Arc<CsvHeader>>) {
        let held = kept.map_or(RowTextStorage::InFile, |texts| self.keep(texts));
        self.table.segments.push(TableSegment { file: DatasetFile(file.0.clone()), storage: held, header: header.cloned() });
    }

    /// Stores texts: the first ones in memory, others in the temporary file, unless that fails.
    fn keep(&mut self, texts: Vec<u8>) -> RowTextStorage {
        self.kept += texts.len() as u64;
        let spilled = if self.kept > self.small { self.table.spill.write(&texts) } else { None };
        spilled.map_or_else(|| RowTextStorage::InMemory(texts.into_boxed_slice()), RowTextStorage::Spilled)
    }

    /// Adds the rows of a file that is read completely.
    fn rows(&mut self, file: DatasetFile, mut rows: Vec<LocatedRow>) -> Result<()> {
        rows.retain(|_| self.is_used());
        let wrong = |e: serde_json::Error| file.file_error(e.to_string());
        let mut rows = rows.into_iter();
        loop {
            let some: Vec<LocatedRow> = rows.by_ref().take(TOGETHER.1).collect();
            if some.is_empty() {
                return Ok(());
            }
            let (begin, shelf) = (self.table.rows.len(), self.table.segments.len() as u32);
            let judge = self.judging();
            let find = |(i, (place, columns)): (usize, LocatedRow)| {
                let text = serde_json::to_vec(&columns).map_err(wrong)?;
                let check = check(&text);
                Ok((text, check, place.line, judge(begin + i, &place, columns)))
            };
            let found: Vec<Result<_>> = some.into_par_iter().enumerate().with_min_len(ROWS_A_THREAD).map(find).collect();
            drop(judge);
            let mut kept = Vec::new();
            for found in found {
                let (text, check, line, judged) = found?;
                let (length, at) = (text.len() as u32, kept.len() as u64);
                self.add(judged, RowPosition { segment: shelf, length, at, line, column: None, check });
                kept.extend_from_slice(&text);
            }
            self.add_segment(&file, Some(kept), None);
        }
    }

    /// Adds rows that are read one by one, in batches.
    fn texts(
        &mut self,
        file: &DatasetFile,
        mut next_row: impl FnMut() -> Result<Option<RowText>>,
        size: Option<u64>,
        header: Option<&Arc<CsvHeader>>,
    ) -> Result<()> {
        let again = size.is_some_and(|size| size > self.small);
        loop {
            let (mut some, mut bytes, mut ending) = (Vec::new(), 0, None);
            while ending.is_none() && bytes < TOGETHER.0 && some.len() < TOGETHER.1 {
                match next_row() {
                    Ok(Some(_)) if !self.is_used() => {}
                    Ok(Some(text)) => {
                        bytes += text.text.len();
                        some.push(text);
                    }
                    Ok(None) => ending = Some(Ok(())),
                    Err(error) => ending = Some(Err(error)),
                }
            }
            self.some_texts(file, &some, again, header)?;
            if let Some(ending) = ending {
                return ending;
            }
        }
    }

    /// Judges rows; the first has the index `begin`.
    fn find(&self, begin: usize, some: &[RowText]) -> Vec<Result<RowJudgement<T>>> {
        let (judge, located) = (self.judging(), self.located);
        let find = |(i, text): (usize, &RowText)| {
            let judged = match located {
                Some(judged) => Ok(judged()),
                None => judge(begin + i, &text.place, text.parse()?.0),
            };
            Ok(RowJudgement { check: check(&text.text), judged })
        };
        some.par_iter().enumerate().with_min_len(ROWS_A_THREAD).map(find).collect()
    }

    fn some_texts(&mut self, file: &DatasetFile, some: &[RowText], again: bool, header: Option<&Arc<CsvHeader>>) -> Result<()> {
        let shelf = self.table.segments.len() as u32;
        let found = self.find(self.table.rows.len(), some);
        let mut kept = Vec::new();
        for (text, found) in some.iter().zip(found) {
            let RowJudgement { check, judged } = found?;
            let at = if again { text.at } else { kept.len() as u64 };
            let (length, line, column) = (text.text.len() as u32, text.place.line, text.column.map(|column| column as u32));
            self.add(judged, RowPosition { segment: shelf, length, at, line, column, check });
            if !again {
                kept.extend_from_slice(&text.text);
            }
        }
        self.add_segment(file, (!again).then_some(kept), header);
        Ok(())
    }
}

/// Returns the files that the ranks read together: none unless all ranks have the same.
fn shared<P: DatasetRanks>(
    files: &[PathBuf],
    peers: &P,
    (small, block): (u64, u64),
) -> std::result::Result<Vec<Option<JsonLinesLayout>>, P::Error> {
    let alone = vec![None; files.len()];
    if peers.ranks().1 == 1 {
        return Ok(alone);
    }
    let own: Vec<Option<JsonLinesLayout>> = files.iter().map(|path| JsonLinesLayout::from_path(path, small, block)).collect();
    let all = peers.gather("a dataset's files", own.clone())?;
    Ok(if all.iter().all(|other| *other == own) { own } else { alone })
}

#[cfg(test)]
mod tests;
