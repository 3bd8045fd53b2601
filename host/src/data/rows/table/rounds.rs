//! The rows of a large file that several ranks read together.

use super::{Columns, Found, Location, Scan, Stored};
use crate::data::rows::File;
use crate::data::rows::bounds::{self, Budget};
use crate::data::rows::together::{Block, Judgement, Lines, Peers};
use crate::data::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a rank found of a row.
#[derive(Deserialize, Serialize)]
#[serde(bound = "T: Judgement")]
struct Row<T> {
    at: u64,
    length: u32,
    line: usize,
    check: u64,
    /// Memory that its columns take.
    bytes: u64,
    /// None if each rank must look at it.
    judged: Option<T>,
}

/// Returns for each file whether the ranks read it together, as those that all of them have alike.
pub(super) fn shared<P: Peers>(
    files: &[PathBuf],
    peers: &P,
    (small, block): (u64, u64),
) -> std::result::Result<Vec<Option<Lines>>, P::Error> {
    let alone = vec![None; files.len()];
    if peers.rank().1 == 1 {
        return Ok(alone);
    }
    let own: Vec<Option<Lines>> = files.iter().map(|path| Lines::of(path, small, block)).collect();
    let all = peers.gather("a dataset's files", own.clone())?;
    Ok(if all.iter().all(|other| *other == own) { own } else { alone })
}

impl<T: Judgement, J: Fn(usize, &Location, Columns) -> T + Sync, K: FnMut(usize, T)> Scan<'_, J, K> {
    /// Takes the rows of a file that the ranks read together.
    pub(super) fn rounds<P: Peers>(&mut self, path: &Path, lines: Lines, peers: &P) -> std::result::Result<(), P::Error> {
        let file = File::new(path);
        let (rank, ranks) = peers.rank();
        let budget = &mut Budget::new(bounds::limit(lines.size));
        self.shelf(&file, None);
        self.table.shared = true;
        let mut line = 1;
        for round in 0..lines.rounds(ranks) {
            let block = Block::read(path, lines, round * ranks as u64 + rank as u64);
            // A block that can't be read fails below, after those of lower ranks.
            let own = block.as_ref().map_or((0, 0), |block| (block.texts(&file, 1).0.len(), block.lines()));
            let counts = peers.gather("the number of a dataset's rows", own)?;
            let before = |rank: usize| counts[..rank].iter().fold((0, 0), |(rows, lines), of| (rows + of.0, lines + of.1));
            let (rows, passed) = before(rank);
            let block = block.map_err(|source| Error::Io { path: path.to_owned(), source })?;
            let found = self.found(&file, &block, (self.table.rows.len() + rows, line + passed))?;
            for row in peers.gather("a dataset's rows", found)?.into_iter().flatten() {
                self.told(&file, row, budget)?;
            }
            line += before(ranks).1;
        }
        Ok(())
    }

    /// Returns what is found of a block's rows, of which the first has this number and is on this line or a later one.
    fn found(&self, file: &File, block: &Block, (begin, line): (usize, usize)) -> Result<Vec<Row<T>>> {
        let (texts, ended) = block.texts(file, line);
        let found = texts.iter().zip(self.find(begin, &texts)).map(|(text, found)| {
            let Found { bytes, check, judged } = found?;
            let judged = judged.ok().filter(T::can_be_told);
            Ok(Row { at: text.at, length: text.text.len() as u32, line: text.place.line, check, bytes, judged })
        });
        let found = found.collect::<Result<_>>()?;
        ended.and(Ok(found))
    }

    fn told(&mut self, file: &File, row: Row<T>, budget: &mut Budget) -> Result<()> {
        let Row { at, length, line, check, bytes, judged } = row;
        let stored = Stored { shelf: self.table.shelves.len() as u32 - 1, length, at, line, check };
        budget.row_of(file, length as usize, bytes)?;
        let judged = match judged {
            Some(judged) => Ok(judged),
            None => {
                let number = self.table.rows.len();
                let (place, columns) = self.table.text(&stored)?;
                self.judging()(number, &place, columns)
            }
        };
        self.add(judged, stored);
        Ok(())
    }
}
