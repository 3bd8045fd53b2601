//! Rows of a large file that several ranks read together.

use super::super::row::DatasetFile;
use super::super::row::RowColumns;
use super::{Location, RowJudgement, RowPosition, TOGETHER, TableScan};
use crate::rows::json::RowText;
use crate::rows::json_lines_blocks::{DatasetRanks, JsonLinesBlock, JsonLinesLayout};
use crate::{Error, Result, error_serde};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Report of a rank on the rows of a block.
#[derive(Deserialize, Serialize)]
struct BlockReport<T> {
    rows: Vec<BlockReportRow<T>>,
    lacking: Option<MissingColumnError>,
}

/// Report on one row.
#[derive(Deserialize, Serialize)]
struct BlockReportRow<T> {
    at: u64,
    length: u32,
    line: usize,
    column: Option<u32>,
    check: u64,
    /// Judgement of the row; `None` if it lacks a column.
    judged: Option<T>,
}

/// Error of a row that lacks a column.
#[derive(Deserialize, Serialize)]
struct MissingColumnError(#[serde(with = "error_serde")] Box<Error>);

impl<T, J, K> TableScan<'_, T, J, K>
where
    T: Send + Serialize + DeserializeOwned,
    J: Fn(usize, &Location, RowColumns) -> T + Sync,
    K: FnMut(usize, T),
{
    /// Adds the rows of a file that the ranks read together.
    pub(super) fn rounds<P: DatasetRanks>(
        &mut self,
        path: &Path,
        lines: JsonLinesLayout,
        peers: &P,
    ) -> std::result::Result<(), P::Error> {
        let file = DatasetFile::new(path);
        let (rank, ranks) = peers.ranks();
        self.add_segment(&file, None, None);
        self.table.shared = true;
        let mut line = 0;
        for round in 0..lines.rounds(ranks) {
            let block = JsonLinesBlock::read(path, lines, round * ranks as u64 + rank as u64);
            let block = block.map_err(|source| Error::Io { path: path.to_owned(), source });
            // An error of this rank is returned after the counts are gathered, so that the error of a lower rank comes first.
            let (length, (texts, ended)) =
                block.map_or_else(|error| (0, (Vec::new(), Err(error))), |block| (block.lines(), block.texts(&file)));
            let counts = peers.gather("the number of a dataset's rows", (texts.len(), length))?;
            let before = |rank: usize| counts[..rank].iter().fold((0, 0), |(rows, lines), of| (rows + of.0, lines + of.1));
            let (rows, passed) = before(rank);
            let told = self.found(texts, ended, (self.table.rows.len() + rows, line + passed))?;
            for (other, told) in peers.gather("a dataset's rows", told)?.into_iter().enumerate() {
                let begin = self.table.rows.len();
                self.told(told)?;
                if other != rank {
                    // Detects now that this rank's file differs, unless its first row is equal.
                    self.table.rows.get(begin).map_or(Ok(()), |row| self.table.text(row).map(drop))?;
                }
            }
            line += before(ranks).1;
        }
        Ok(())
    }

    /// Judges a block's rows; the first has the index `begin` and comes after `lines` lines.
    fn found(&self, mut texts: Vec<RowText>, ended: Result<()>, (begin, lines): (usize, usize)) -> Result<BlockReport<T>> {
        texts.iter_mut().for_each(|text| text.place.line += lines);
        let mut lacking = None;
        let mut rows = Vec::with_capacity(texts.len());
        for some in texts.chunks(TOGETHER.1) {
            let found = self.find(begin + rows.len(), some);
            for (text, found) in some.iter().zip(found) {
                let RowJudgement { check, judged } = found?;
                let judged = match judged {
                    Ok(judged) => Some(judged),
                    Err(error) => {
                        lacking.get_or_insert(MissingColumnError(Box::new(error)));
                        None
                    }
                };
                let (length, column) = (text.text.len() as u32, text.column.map(|column| column as u32));
                rows.push(BlockReportRow { at: text.at, length, line: text.place.line, column, check, judged });
            }
        }
        let later = |error| match error {
            Error::Row { path, line, detail } => Error::Row { path, line: line + lines, detail },
            other => other,
        };
        ended.map_err(later).and(Ok(BlockReport { rows, lacking }))
    }

    fn told(&mut self, BlockReport { rows, lacking }: BlockReport<T>) -> Result<()> {
        let shelf = self.table.segments.len() as u32 - 1;
        for BlockReportRow { at, length, line, column, check, judged } in rows {
            let number = self.table.rows.len();
            self.table.rows.push(RowPosition { segment: shelf, length, at, line, column, check });
            if let Some(judged) = judged {
                (self.take)(number, judged);
            }
        }
        if let (None, Some(MissingColumnError(error))) = (&self.lacking, lacking) {
            self.lacking = Some(*error);
        }
        Ok(())
    }
}
