//! The rows of a large file that several ranks read together.

use super::super::row::Columns;
use super::super::row::File;
use super::{Found, Location, Scan, Stored, TOGETHER};
use crate::rows::json::Text;
use crate::rows::together::{Block, Lines, Peers};
use crate::{Error, Result, told};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a rank found in a block.
#[derive(Deserialize, Serialize)]
struct Told<T> {
    rows: Vec<ToldRow<T>>,
    lacking: Option<Lacking>,
}

/// What a rank found of a row.
#[derive(Deserialize, Serialize)]
struct ToldRow<T> {
    at: u64,
    length: u32,
    line: usize,
    column: Option<u32>,
    check: u64,
    /// None if it lacks a column.
    judged: Option<T>,
}

/// Why a row lacks a column.
#[derive(Deserialize, Serialize)]
struct Lacking(#[serde(with = "told")] Box<Error>);

impl<T, J, K> Scan<'_, T, J, K>
where
    T: Send + Serialize + DeserializeOwned,
    J: Fn(usize, &Location, Columns) -> T + Sync,
    K: FnMut(usize, T),
{
    /// Takes the rows of a file that the ranks read together.
    pub(super) fn rounds<P: Peers>(&mut self, path: &Path, lines: Lines, peers: &P) -> std::result::Result<(), P::Error> {
        let file = File::new(path);
        let (rank, ranks) = peers.ranks();
        self.shelf(&file, None, None);
        self.table.shared = true;
        let mut line = 0;
        for round in 0..lines.rounds(ranks) {
            let block = Block::read(path, lines, round * ranks as u64 + rank as u64);
            let block = block.map_err(|source| Error::Io { path: path.to_owned(), source });
            // What is wrong is said below, so that the failure of a lower rank comes first.
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
                    // A file that differs here is noticed now, if not by the first row.
                    self.table.rows.get(begin).map_or(Ok(()), |row| self.table.text(row).map(drop))?;
                }
            }
            line += before(ranks).1;
        }
        Ok(())
    }

    /// Returns what is found of a block's rows, of which the first has the number `begin`, after this many lines.
    fn found(&self, mut texts: Vec<Text>, ended: Result<()>, (begin, lines): (usize, usize)) -> Result<Told<T>> {
        texts.iter_mut().for_each(|text| text.place.line += lines);
        let mut lacking = None;
        let mut rows = Vec::with_capacity(texts.len());
        for some in texts.chunks(TOGETHER.1) {
            let found = self.find(begin + rows.len(), some);
            for (text, found) in some.iter().zip(found) {
                let Found { check, judged } = found?;
                let judged = match judged {
                    Ok(judged) => Some(judged),
                    Err(error) => {
                        lacking.get_or_insert(Lacking(Box::new(error)));
                        None
                    }
                };
                let (length, column) = (text.text.len() as u32, text.column.map(|column| column as u32));
                rows.push(ToldRow { at: text.at, length, line: text.place.line, column, check, judged });
            }
        }
        let later = |error| match error {
            Error::Row { path, line, detail } => Error::Row { path, line: line + lines, detail },
            other => other,
        };
        ended.map_err(later).and(Ok(Told { rows, lacking }))
    }

    fn told(&mut self, Told { rows, lacking }: Told<T>) -> Result<()> {
        let shelf = self.table.shelves.len() as u32 - 1;
        for ToldRow { at, length, line, column, check, judged } in rows {
            let number = self.table.rows.len();
            self.table.rows.push(Stored { shelf, length, at, line, column, check });
            if let Some(judged) = judged {
                (self.take)(number, judged);
            }
        }
        if let (None, Some(Lacking(error))) = (&self.lacking, lacking) {
            self.lacking = Some(*error);
        }
        Ok(())
    }
}
