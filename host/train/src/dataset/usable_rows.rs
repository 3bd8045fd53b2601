//! Collects the outcomes of a dataset's scan in the order of the rows, and stores a summary of each.

use super::row_outcome::{PartOutcomes, RowOutcome};
use super::row_verdict::{RowVerdict, TRIED_PAIRS};
use super::{DatasetKind, DatasetReader, hex};
use crate::data::{self, PairOrdering, UnusableRows};
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// Number of a row in the dataset, and of a part of it.
#[derive(Clone, Copy)]
pub(super) struct RowPart {
    pub(super) row: usize,
    pub(super) part: usize,
}

/// The usable rows so far, with their totals.
pub(super) struct UsableRows<'a> {
    reader: &'a DatasetReader,
    kind: DatasetKind,
    refused: UnusableRows,
    /// The first errors that end the run: of an unreadable row, and of an unusable one.
    ends: [Option<data::Error>; 2],
    order: PairOrdering<(RowPart, RowOutcome)>,
    used: Vec<RowPart>,
    sums: UsableTotals,
    /// Names of the rows' other columns.
    columns: BTreeSet<String>,
    /// Hashes of the rows for each set of settings that may determine their tokens; which one applies depends on the longest row.
    hashes: Vec<(String, Sha256)>,
}

/// Totals over the usable rows.
#[derive(Default)]
pub(super) struct UsableTotals {
    /// The largest of [`RowVerdict::reach`].
    reach: [usize; 2],
    /// Whether any row is a conversation.
    pub(super) chat: bool,
    /// Length of the longest prompt that was counted, in tokens.
    pub(super) longest: usize,
    /// Number of pairs, among the first rows, whose prompt's last tokens merge with an answer's first.
    merged: usize,
    /// Number of pairs with a margin.
    margins: usize,
    /// Numbers of undesirable and of desirable completions.
    labels: [usize; 2],
    /// Rows of which the chat template omits something.
    left_out: RowFinding,
    /// Rows that are truncated at `max_length`.
    truncated: RowFinding,
}

/// What was found in some rows.
#[derive(Default)]
pub(super) struct RowFinding {
    /// Number of the rows.
    count: usize,
    /// What was found in the first of them, in words.
    first: Option<String>,
}

impl RowFinding {
    /// Adds what was found in a row, if anything was. Returns whether it is the first such row.
    pub(super) fn add(&mut self, found: Option<String>) -> bool {
        let is_first = self.first.is_none() && found.is_some();
        self.count += usize::from(found.is_some());
        self.first = self.first.take().or(found);
        is_first
    }
}

/// Result of scanning all rows of a dataset.
pub(super) struct UsableSummary {
    /// The usable rows, in the order of training.
    pub(super) used: Vec<RowPart>,
    pub(super) sums: UsableTotals,
    /// Hash of everything that determines the rows' tokens and columns.
    pub(super) hash: String,
    /// Names of the rows' other columns.
    pub(super) columns: BTreeSet<String>,
    /// Warning that names skipped rows and other faults.
    pub(super) warning: Option<String>,
}

impl<'a> UsableRows<'a> {
    pub(super) fn new(reader: &'a DatasetReader, kind: DatasetKind) -> Self {
        let reaches = [[0, 0], [usize::MAX, 0], [0, usize::MAX], [usize::MAX; 2]];
        let mut shapes: Vec<String> = reaches.map(|reach| reader.shape(kind, reach)).into();
        shapes.sort_unstable();
        shapes.dedup();
        let begun = |shape: String| {
            let hash = Sha256::new_with_prefix(reader.tokenizer.hash()).chain_update(&shape);
            (shape, hash)
        };
        Self {
            reader,
            kind,
            refused: UnusableRows::new(reader.strict),
            ends: [None, None],
            order: PairOrdering::default(),
            used: Vec::new(),
            sums: UsableTotals::default(),
            columns: BTreeSet::new(),
            hashes: shapes.into_iter().map(begun).collect(),
        }
    }

    /// Adds the outcomes of a row's parts.
    pub(super) fn take(&mut self, row: usize, parts: PartOutcomes) {
        let numbered = parts.0.into_iter().enumerate().map(|(part, seen)| (RowPart { row, part }, seen)).collect();
        // Rows that are in order now; later pairs may have to come first.
        let ready = self.order.push(numbered);
        ready.into_iter().for_each(|(used, seen)| self.sort(used, seen));
    }

    fn sort(&mut self, used: RowPart, seen: RowOutcome) {
        let (which, error) = match seen {
            RowOutcome::Unnamed => return self.refused.count_more(1),
            RowOutcome::Passed => return,
            RowOutcome::Usable(verdict, columns) => {
                self.columns.extend(columns);
                return self.add(used, verdict);
            }
            RowOutcome::Unreadable(error) => (0, error),
            RowOutcome::Refused(error) => (1, error),
        };
        if let Err(error) = self.refused.usable::<()>(used.row, Err(*error)) {
            self.ends[which].get_or_insert(error);
        }
    }

    fn add(&mut self, used: RowPart, verdict: RowVerdict) {
        self.used.push(used);
        self.hashes.iter_mut().for_each(|(_, hash)| hash.update(verdict.hash));
        let sums = &mut self.sums;
        sums.reach = [0, 1].map(|i| sums.reach[i].max(verdict.reach[i]));
        sums.chat |= verdict.chat;
        sums.longest = sums.longest.max(verdict.tokens);
        // Of the later rows, only those are tokenized for which bounds proved nothing.
        sums.merged += usize::from(used.row < TRIED_PAIRS && verdict.cut);
        sums.margins += usize::from(verdict.margin);
        sums.left_out.add(verdict.left_out);
        sums.truncated.add(verdict.truncated);
        if let Some(label) = verdict.label {
            sums.labels[usize::from(label)] += 1;
        }
    }

    /// Returns the summary of all rows.
    ///
    /// # Errors
    /// If the scan ended the run, or no row is usable.
    pub(super) fn done(mut self) -> Result<UsableSummary> {
        let rest = std::mem::take(&mut self.order).end();
        rest.into_iter().for_each(|(used, seen)| self.sort(used, seen));
        if let Some(error) = self.ends.into_iter().flatten().next() {
            return Err(error.into());
        }
        let left_out = self.refused.warning(self.used.len())?;
        let UsableTotals { reach, merged, margins, labels, .. } = self.sums;
        warn_of_merges(merged, self.used.last().is_none_or(|used| used.row < TRIED_PAIRS));
        check_margins(margins, self.used.len())?;
        let shape = self.reader.shape(self.kind, reach);
        let hash = self.hashes.into_iter().find(|(of, _)| *of == shape);
        let (_, hash) = hash.ok_or(Error::Bug("settings shape tokens in a way that was not expected"))?;
        self.used.shrink_to_fit();
        let all = self.used.len();
        let findings = unwritten(&self.sums.left_out, all).into_iter().chain(cut_off(&self.sums.truncated, all));
        let warnings = left_out.into_iter().chain(one_sided(labels)).chain(findings);
        let warning = warnings.reduce(|a, b| format!("{a}; {b}"));
        Ok(UsableSummary { used: self.used, sums: self.sums, hash: hex(&hash.finalize()), columns: self.columns, warning })
    }
}

/// Warns about prompts that merge with their answers.
pub(super) fn warn_of_merges(merged: usize, all: bool) {
    let pairs = match (merged, all) {
        (0, _) => return,
        (1, true) => "1 pair".to_owned(),
        (_, true) => format!("{merged} pairs"),
        (_, false) => format!("{merged} of the first {TRIED_PAIRS} pairs"),
    };
    tracing::warn!("in {pairs} the prompt's last tokens merge with an answer's first; there the answer starts earlier");
}

/// Refuses pairs if only some have a margin.
fn check_margins(with: usize, all: usize) -> Result<()> {
    if with == 0 || with == all {
        return Ok(());
    }
    let without = all - with;
    let detail = format!("{without} of its {all} pairs have no \"margin\"; either all pairs must have one or none");
    Err(Error::setting("dataset", detail))
}

/// Returns a warning if the chat template omits something from some of the rows.
pub(super) fn unwritten(RowFinding { count, first }: &RowFinding, all: usize) -> Option<String> {
    let first = first.as_ref()?;
    let advice = "use a template that writes it (chat_template_path), or remove it from the dataset";
    Some(format!("{first}, so it is not learned. {count} of {all} rows are affected; {advice} (strict_data refuses such rows)"))
}

/// Returns a warning if some of the rows are truncated at `max_length`.
pub(super) fn cut_off(RowFinding { count, first }: &RowFinding, all: usize) -> Option<String> {
    let first = first.as_ref()?;
    Some(format!("{first}. {count} of {all} rows are affected; raise max_length to keep whole texts"))
}

/// Returns a warning if all labelled completions have the same label.
pub(super) fn one_sided([undesirable, desirable]: [usize; 2]) -> Option<String> {
    let kind = match (undesirable, desirable) {
        (1.., 0) => "undesirable",
        (0, 1..) => "desirable",
        _ => return None,
    };
    let all = undesirable + desirable;
    Some(format!(
        "dataset: all of its {all} completions are {kind}; the algorithm needs both kinds to learn from their difference"
    ))
}
