//! Sorts what the first look finds of a dataset's rows, one after another, and keeps little of each.

use super::judging::{TRIED_PAIRS, Verdict};
use super::looking::Seen;
use super::{Kind, Reader, hex};
use crate::data::{self, Order, Refused};
use crate::train::{Error, Result};
use sha2::{Digest, Sha256};

/// The row of a prompt in the dataset, and which of the row's parts it is.
#[derive(Clone, Copy)]
pub(super) struct Used {
    pub(super) row: usize,
    pub(super) part: usize,
}

/// The rows that can be used so far, and what is known of them together.
pub(super) struct Usable<'a> {
    reader: &'a Reader,
    kind: Kind,
    refused: Refused,
    /// The first errors that end the run: of a row that can't be read, and of one that was judged.
    ends: [Option<data::Error>; 2],
    order: Order<(Used, Seen)>,
    used: Vec<Used>,
    sums: Sums,
    /// Hashes of the rows for all that may shape their tokens. Which it is depends on the longest row.
    hashes: Vec<(String, Sha256)>,
}

/// What is known of the usable rows together.
#[derive(Default)]
pub(super) struct Sums {
    /// The largest of [`Verdict::reach`].
    reach: [usize; 2],
    /// Whether any is a conversation.
    pub(super) chat: bool,
    /// The largest number of tokens of a prompt that was counted.
    pub(super) longest: usize,
    /// Pairs among the first rows whose prompt's last tokens merge with an answer's first.
    merged: usize,
    /// Pairs that say by how much the chosen answer is better.
    margins: usize,
}

impl<'a> Usable<'a> {
    pub(super) fn new(reader: &'a Reader, kind: Kind) -> Self {
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
            refused: Refused::new(reader.strict),
            ends: [None, None],
            order: Order::default(),
            used: Vec::new(),
            sums: Sums::default(),
            hashes: shapes.into_iter().map(begun).collect(),
        }
    }

    /// Takes what was seen of the next row's parts.
    pub(super) fn take(&mut self, row: usize, parts: Vec<Seen>) {
        let numbered = parts.into_iter().enumerate().map(|(part, seen)| (Used { row, part }, seen)).collect();
        // Those in order now; further pairs may have to come first.
        let ready = self.order.push(numbered);
        ready.into_iter().for_each(|(used, seen)| self.sort(used, seen));
    }

    fn sort(&mut self, used: Used, seen: Seen) {
        let (which, outcome) = match seen {
            Seen::Unnamed => return self.refused.count_more(1),
            Seen::Passed => return,
            Seen::Unreadable(error) => (0, Err(*error)),
            Seen::Judged(judged) => (1, judged.map_err(|error| *error)),
        };
        match self.refused.usable(used.row, outcome) {
            Ok(Some(verdict)) => self.add(used, &verdict),
            Ok(None) => {}
            Err(error) => drop(self.ends[which].get_or_insert(error)),
        }
    }

    fn add(&mut self, used: Used, verdict: &Verdict) {
        self.used.push(used);
        self.hashes.iter_mut().for_each(|(_, hash)| hash.update(verdict.hash));
        let sums = &mut self.sums;
        sums.reach = [0, 1].map(|i| sums.reach[i].max(verdict.reach[i]));
        sums.chat |= verdict.chat;
        sums.longest = sums.longest.max(verdict.tokens);
        // Beyond those, only rows about which nothing was proved are tokenized.
        sums.merged += usize::from(used.row < TRIED_PAIRS && verdict.cut);
        sums.margins += usize::from(verdict.margin);
    }

    /// Returns the rows in the order in which they are learned, what is known of them together, the hash of all that determines their
    /// tokens and columns, and a warning that names skipped rows.
    ///
    /// # Errors
    /// If the first look ended the run, or no row can be used.
    pub(super) fn done(mut self) -> Result<(Vec<Used>, Sums, String, Option<String>)> {
        let rest = std::mem::take(&mut self.order).end();
        rest.into_iter().for_each(|(used, seen)| self.sort(used, seen));
        if let Some(error) = self.ends.into_iter().flatten().next() {
            return Err(error.into());
        }
        let warning = self.refused.warning(self.used.len())?;
        let Sums { reach, merged, margins, .. } = self.sums;
        warn_of_merges(merged, self.used.last().is_none_or(|used| used.row < TRIED_PAIRS));
        check_margins(margins, self.used.len())?;
        let shape = self.reader.shape(self.kind, reach);
        let hash = self.hashes.into_iter().find(|(of, _)| *of == shape);
        let (_, hash) = hash.ok_or(Error::Bug("settings shape tokens in a way that was not expected"))?;
        self.used.shrink_to_fit();
        Ok((self.used, self.sums, hex(&hash.finalize()), warning))
    }
}

/// Warns about prompts that merge with their answers.
fn warn_of_merges(merged: usize, all: bool) {
    let among = if all { String::new() } else { format!(" of the first {TRIED_PAIRS}") };
    if merged > 0 {
        tracing::warn!(
            "in {merged}{among} pairs the prompt's last tokens merge with an answer's first; there the answer starts earlier"
        );
    }
}

/// Refuses pairs of which only some say by how much the chosen answer is better.
fn check_margins(with: usize, all: usize) -> Result<()> {
    if with == 0 || with == all {
        return Ok(());
    }
    let without = all - with;
    let detail = format!("{without} of its {all} pairs have no \"margin\"; either all pairs must have one or none");
    Err(Error::setting("dataset", detail))
}
