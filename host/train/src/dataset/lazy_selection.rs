//! Judges rows when they are drawn, so that a run on a large dataset starts before all rows have been read.
//!
//! A place is the number of a part of a row, whether usable or not. A pass visits all places in order, skipping those that turn out to be
//! unusable. So the order does not depend on which rows were judged before, or on whether all are judged at the start.

use super::row_outcome::RowOutcome;
use super::row_verdict::RowVerdict;
use super::usable_rows::{RowFinding, RowPart, cut_off, one_sided, unwritten, warn_of_merges};
use super::{DatasetKind, DatasetReader, hex};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::data::{self, DatasetTable, UnusableRows};
use crate::dist::World;
use crate::{Error, Result};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prefix of a fingerprint of rows that are drawn from all rows, whether they are judged when drawn or at the start.
pub(crate) const LINES_PREFIX: &str = "lines:";

/// Number of first rows that are judged at the start in any case, to find faults that most rows have. As many others, spread over the
/// dataset, are read for their columns' names.
const HEAD: usize = 256;

/// Maximum number of rows, and of bytes of text, of datasets that are judged at the start: that takes less than a second.
const SMALL: (usize, u64) = (4096, 4 << 20);

/// Block size of labelled rows: within a block, all chosen answers or single completions come before all rejected answers.
const BLOCK: usize = 1000;

/// Number of rows per rank that are judged together when all rows are judged.
const TOGETHER: usize = 1024;

/// Minimum number of rows per thread.
const ROWS_A_THREAD: usize = 16;

/// Number of labelled completions after which a warning is given if all have the same label.
const ONE_SIDED: usize = 1024;

/// Rows of a dataset, and how they are read.
#[derive(Clone, Copy)]
pub(super) struct DatasetRows<'a> {
    pub(super) reader: &'a DatasetReader,
    pub(super) kind: DatasetKind,
    pub(super) table: &'a DatasetTable,
}

/// Judgement of a place.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Unknown,
    Usable,
    Unusable,
}

/// Judgements of all places so far.
pub(super) struct LazySelection {
    rows: usize,
    /// Number of parts that a row may have.
    parts: usize,
    state: Mutex<LazySelectionState>,
}

struct LazySelectionState {
    fates: Vec<Fate>,
    /// Number of usable places so far.
    usable: usize,
    refused: UnusableRows,
    /// Whether any row is a conversation.
    chat: bool,
    /// Length of the longest prompt that was counted, in tokens.
    longest: usize,
    /// Whether pairs have margins; none before the first pair.
    margins: Option<bool>,
    /// Numbers of undesirable and of desirable completions.
    labels: [usize; 2],
    /// Number of pairs, among the first, whose prompt's last tokens merge with an answer's first.
    merged: usize,
    /// Rows of which the chat template omits something.
    left_out: RowFinding,
    /// Rows that are truncated at `max_length`.
    truncated: RowFinding,
    /// Warnings that have not been taken yet; none while many rows are judged at once, which are described together afterwards.
    warnings: Option<Vec<String>>,
    /// Number of unusable rows at which the next warning is due.
    next_warning: usize,
}

impl DatasetRows<'_> {
    /// Judges a part of a row.
    ///
    /// # Errors
    /// If the row has changed, is not JSON or lacks a column, which ends the run.
    fn look(self, RowPart { row, part }: RowPart) -> data::Result<RowOutcome> {
        let (place, columns) = self.table.row(row)?;
        let parts = match self.reader.rows_of(self.kind, row, &place, columns) {
            Ok(parts) => parts,
            // The error is reported with the first part.
            Err(_) if part > 0 => return Ok(RowOutcome::Passed),
            Err(error) => return Ok(RowOutcome::Unreadable(Box::new(error))),
        };
        let Some(own) = parts.into_iter().nth(part) else { return Ok(RowOutcome::Passed) };
        Ok(match self.reader.judge(self.kind, row, own) {
            Ok(verdict) => RowOutcome::Usable(verdict, Vec::new()),
            Err(error) => RowOutcome::Refused(Box::new(error)),
        })
    }

    /// Judges several parts in parallel.
    fn look_at(self, places: &[RowPart]) -> Vec<data::Result<RowOutcome>> {
        places.par_iter().with_min_len(ROWS_A_THREAD).map(|used| self.look(*used)).collect()
    }

    /// Returns an error for a row that shows a fault of the dataset.
    fn wrong(self, row: usize, detail: &str) -> Error {
        match self.table.place(row) {
            Some(place) => place.row_error(detail).into(),
            None => Error::setting("dataset", detail),
        }
    }
}

impl LazySelection {
    /// Creates a selection from this many rows of a kind.
    pub(super) fn new(kind: DatasetKind, rows: usize, strict: bool) -> Self {
        let parts = if matches!(kind, DatasetKind::Labelled) { 2 } else { 1 };
        let state = LazySelectionState {
            fates: vec![Fate::Unknown; rows * parts],
            usable: 0,
            refused: UnusableRows::new(strict),
            chat: false,
            longest: 0,
            margins: None,
            labels: [0; 2],
            merged: 0,
            left_out: RowFinding::default(),
            truncated: RowFinding::default(),
            warnings: None,
            next_warning: 1,
        };
        Self { rows, parts, state: Mutex::new(state) }
    }

    /// Returns the number of places.
    pub(super) fn len(&self) -> usize {
        self.rows * self.parts
    }

    /// Returns the row and the part at a place. Halves of pairs are in blocks, as in TRL.
    pub(super) fn used(&self, place: usize) -> RowPart {
        if self.parts == 1 {
            return RowPart { row: place, part: 0 };
        }
        let first = place / (BLOCK * self.parts) * BLOCK;
        let (within, size) = (place - first * self.parts, BLOCK.min(self.rows - first));
        RowPart { row: first + within % size, part: within / size }
    }

    /// Returns whether any row so far is a conversation.
    pub(super) fn has_chat(&self) -> bool {
        self.state().chat
    }

    /// Returns the length of the longest prompt so far, if it is long enough for a warning.
    pub(super) fn longest(&self) -> usize {
        self.state().longest
    }

    /// Returns the number of usable places among those judged so far.
    pub(super) fn usable_so_far(&self) -> usize {
        self.state().usable
    }

    /// Returns whether all places have been judged.
    pub(super) fn is_done(&self) -> bool {
        !self.state().fates.contains(&Fate::Unknown)
    }

    /// Takes the warnings about rows that were drawn since the last call.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.state().warnings.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns which places are usable, judging those that have not been judged.
    ///
    /// # Errors
    /// The first row that ends the run. It is judged again when it is drawn again.
    pub(super) fn usable(&self, of: DatasetRows<'_>, places: &[usize]) -> Result<Vec<bool>> {
        let mut state = self.state();
        let unknown: Vec<usize> = places.iter().copied().filter(|place| state.fates[*place] == Fate::Unknown).collect();
        let used: Vec<RowPart> = unknown.iter().map(|place| self.used(*place)).collect();
        for (place, seen) in unknown.iter().zip(of.look_at(&used)) {
            state.take(of, (*place, self.used(*place)), seen?)?;
        }
        Ok(places.iter().map(|place| state.fates[*place] == Fate::Usable).collect())
    }

    /// Judges the first rows and reads some others. Returns the names of their columns, and a fingerprint of all rows and of what
    /// determines their tokens: the settings, and the first rows' texts as rendered by the chat template.
    ///
    /// # Errors
    /// If the run can't begin with those rows.
    pub(super) fn begin(&self, of: DatasetRows<'_>) -> Result<(BTreeSet<String>, String)> {
        let DatasetRows { reader, kind, table } = of;
        let head = self.rows.min(HEAD);
        let step = (self.rows / HEAD).max(1);
        let some = (0..head).chain((head..self.rows).step_by(step));
        let mut names = BTreeSet::new();
        for row in some {
            let (place, columns) = table.row(row)?;
            let parts = reader.rows_of(kind, row, &place, columns).unwrap_or_default();
            names.extend(parts.iter().flat_map(|part| part.columns().keys().cloned()));
        }
        let mut hash = Sha256::new_with_prefix(table.hash());
        hash.update(reader.tokenizer.hash());
        hash.update(format!("{} {} {}", reader.shape(kind, [usize::MAX; 2]), reader.context, self.parts));
        let mut state = self.state();
        let places: Vec<usize> = (0..self.len().min(head * self.parts)).collect();
        let used: Vec<RowPart> = places.iter().map(|place| self.used(*place)).collect();
        for ((place, used), seen) in places.iter().zip(&used).zip(of.look_at(&used)) {
            let seen = seen?;
            if let RowOutcome::Usable(verdict, _) = &seen {
                hash.update(verdict.hash);
            }
            state.take(of, (*place, *used), seen)?;
        }
        Ok((names, format!("{LINES_PREFIX}{}", hex(&hash.finalize()))))
    }

    /// Returns whether all rows are judged at the start, whatever the run needs.
    pub(super) fn is_small(&self, table: &DatasetTable) -> bool {
        self.rows <= SMALL.0 && table.bytes() <= SMALL.1
    }

    /// Judges all remaining places, divided among the ranks of `together`.
    ///
    /// # Errors
    /// The first row that ends the run, or the reason why no row is usable.
    pub(super) fn judge_all(&self, of: DatasetRows<'_>, together: Option<&World>) -> Result<()> {
        let mut state = self.state();
        let unknown: Vec<usize> = (0..self.len()).filter(|place| state.fates[*place] == Fate::Unknown).collect();
        if unknown.is_empty() {
            return state.check_some();
        }
        let task = ProgressTask::new(Activity::CheckingRows).with_total(unknown.len() as u64, ProgressUnit::Rows);
        let warnings = state.warnings.take();
        for some in unknown.chunks(TOGETHER * together.map_or(1, World::size)) {
            let own = together.map_or(0..some.len(), |world| world.share(some.len()));
            let used: Vec<RowPart> = some[own].iter().map(|place| self.used(*place)).collect();
            let seen = of.look_at(&used).into_iter().collect::<data::Result<Vec<RowOutcome>>>()?;
            let seen = match together {
                Some(world) => world.concat("judgements of rows", seen)?,
                None => seen,
            };
            for (place, seen) in some.iter().zip(seen) {
                state.take(of, (*place, self.used(*place)), seen)?;
            }
            task.add(some.len() as u64);
        }
        state.warnings = warnings;
        state.check_some()
    }

    /// Refuses a dataset without usable rows, once all have been judged.
    ///
    /// # Errors
    /// The reason why the first row is unusable.
    pub(super) fn check_some(&self) -> Result<()> {
        self.state().check_some()
    }

    /// Returns warnings about the rows that have been judged so far; warnings about later rows are given when they are drawn.
    pub(super) fn describe(&self, of: DatasetRows<'_>) -> Vec<String> {
        let mut state = self.state();
        let all = !state.fates.contains(&Fate::Unknown);
        let skipped = (state.refused.count() > 0).then(|| {
            let more = if all { "" } else { "; other rows are judged when they are drawn" };
            format!("{}{more}", state.refused.describe_skipped(state.usable))
        });
        let one_sided = if all { one_sided(state.labels) } else { None };
        let findings = [unwritten(&state.left_out, state.usable), cut_off(&state.truncated, state.usable)];
        let warnings = skipped.into_iter().chain(one_sided).chain(findings.into_iter().flatten()).collect();
        warn_of_merges(state.merged, all && of.table.count() <= super::row_verdict::TRIED_PAIRS);
        state.warnings = Some(Vec::new());
        while state.next_warning <= state.refused.count() {
            state.next_warning *= 10;
        }
        warnings
    }

    fn state(&self) -> MutexGuard<'_, LazySelectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completes a warning about the rows that have been judged while others have not.
fn of_drawn(warning: String) -> String {
    warning + " (of those that were drawn so far)"
}

impl LazySelectionState {
    /// Records the judgement of a place.
    fn take(&mut self, of: DatasetRows<'_>, (place, used): (usize, RowPart), seen: RowOutcome) -> Result<()> {
        self.fates[place] = match seen {
            RowOutcome::Unnamed | RowOutcome::Passed => Fate::Unusable,
            RowOutcome::Usable(verdict, _) => {
                self.add(of, used.row, verdict)?;
                Fate::Usable
            }
            RowOutcome::Unreadable(error) | RowOutcome::Refused(error) => {
                if self.refused.is_final(&error) {
                    return Err((*error).into());
                }
                self.refused.usable::<()>(used.row, Err(*error))?;
                self.warn_of_skipped();
                Fate::Unusable
            }
        };
        Ok(())
    }

    fn add(&mut self, of: DatasetRows<'_>, row: usize, verdict: RowVerdict) -> Result<()> {
        let RowVerdict { chat, tokens, cut, margin, label, left_out, truncated, .. } = verdict;
        if matches!(of.kind, DatasetKind::ValuedPairs) && *self.margins.get_or_insert(margin) != margin {
            let (has, others) = if margin { ("a", "none") } else { ("no", "one") };
            let detail =
                format!("has {has} \"margin\", but pairs before it have {others}; either all pairs must have one or none");
            return Err(of.wrong(row, &detail));
        }
        self.usable += 1;
        self.chat |= chat;
        if let Some(label) = label {
            self.labels[usize::from(label)] += 1;
            if self.usable == ONE_SIDED {
                self.warn(one_sided(self.labels).map(of_drawn));
            }
        }
        let (context, most) = (of.reader.context, of.reader.completion);
        if most > 0 && tokens + most > context && self.longest + most <= context {
            self.warn(Some(format!(
                "completions of a prompt of {tokens} tokens, and of others like it, end at the model's context of {context} tokens, before \
                 max_completion_length {most}"
            )));
        }
        self.longest = self.longest.max(tokens);
        if cut && self.merged == 0 {
            let said = "in some pairs the prompt's last tokens merge with an answer's first; there the answer starts earlier";
            self.warn(Some(said.to_owned()));
        }
        self.merged += usize::from(cut && row < super::row_verdict::TRIED_PAIRS);
        if self.left_out.add(left_out) {
            self.warn(unwritten(&self.left_out, self.usable).map(of_drawn));
        }
        if self.truncated.add(truncated) {
            self.warn(cut_off(&self.truncated, self.usable).map(of_drawn));
        }
        Ok(())
    }

    /// Adds a warning, unless the rows being judged are described together afterwards.
    fn warn(&mut self, said: Option<String>) {
        self.warnings.iter_mut().for_each(|warnings| warnings.extend(said.clone()));
    }

    /// Warns at the first unusable row, the tenth, the hundredth and so on.
    fn warn_of_skipped(&mut self) {
        if self.refused.count() < self.next_warning || self.warnings.is_none() {
            return;
        }
        self.next_warning *= 10;
        self.warn(Some(of_drawn(self.refused.describe_skipped(self.usable))));
    }

    fn check_some(&mut self) -> Result<()> {
        if self.usable > 0 || self.fates.contains(&Fate::Unknown) {
            return Ok(());
        }
        std::mem::take(&mut self.refused).warning(0)?;
        Err(Error::setting("dataset", "has no rows that can be used"))
    }
}
