//! The dataset of a run and the order of its rows.

use super::prompt_skipper::{PromptSkipper, Streaks};
use crate::Result;
use crate::config::RunConfig;
use crate::data::{Cursor, Loader};
use crate::dataset::{Prompt, PromptSet};
use crate::experience::Experience;
use crate::plan::Batching;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Prompts, and the order in which they are drawn.
pub(crate) struct PromptLoader {
    prompts: PromptSet,
    /// Hash of everything that determines the prompts and their columns.
    fingerprint: String,
    /// Names of the dataset's other columns.
    columns: Vec<String>,
    loader: Loader,
    /// Positions of prompts that are drawn together, if each of the loader's rows stands for several.
    packs: Option<Vec<Vec<usize>>>,
    /// Skips prompts, if configured.
    skipping: Option<PromptSkipper>,
    /// Batches that were drawn ahead of training, in order.
    ahead: VecDeque<DrawnBatch>,
}

/// A position in the order of prompts.
pub(super) struct PromptPosition {
    cursor: Cursor,
    streaks: Streaks,
    begins_epoch: bool,
}

/// A batch that was drawn before training needs it.
struct DrawnBatch {
    prompts: Vec<Arc<Prompt>>,
    position: PromptPosition,
}

impl PromptLoader {
    /// Creates a loader of prompts. It draws them by their rows or by those of `packs`; `evaluated` may have further columns.
    ///
    /// # Errors
    /// If they can't be hashed.
    pub(crate) fn new(
        prompts: PromptSet,
        evaluated: Option<&PromptSet>,
        loader: Loader,
        packs: Option<Vec<Vec<usize>>>,
    ) -> Result<Self> {
        let mut columns = prompts.columns().clone();
        columns.extend(evaluated.into_iter().flat_map(|evaluated| evaluated.columns().iter().cloned()));
        let fingerprint = prompts.fingerprint()?;
        Ok(Self {
            prompts,
            fingerprint,
            columns: columns.into_iter().collect(),
            loader,
            packs,
            skipping: None,
            ahead: VecDeque::new(),
        })
    }

    /// Skips prompts as configured.
    #[must_use]
    pub(crate) fn with_skipping(self, config: &RunConfig) -> Self {
        Self { skipping: PromptSkipper::from_config(config), ..self }
    }

    /// Returns the next batch, and the number of prompts that were skipped for it, if any may be.
    ///
    /// # Errors
    /// If a row has changed since it was first read; for rows that are judged only now, if one ends the run or too few can be used.
    pub(super) fn next(&mut self, batching: &Batching) -> Result<(Vec<Arc<Prompt>>, Option<usize>)> {
        let (rows, skipped) = match &self.skipping {
            _ if self.prompts.are_drawn() => self.next_drawn(batching)?,
            None => (self.loader.next_batch(), None),
            Some(skipping) => {
                let (rows, skipped) = self.loader.next_batch_without(|epoch, row| skipping.skips(epoch, row));
                (rows, Some(skipped))
            }
        };
        let prompts = match &self.packs {
            None => self.prompts.get(&rows),
            Some(packs) => self.prompts.get(&rows.into_iter().flat_map(|pack| &packs[pack]).copied().collect::<Vec<_>>()),
        };
        Ok((prompts?, skipped))
    }

    /// Returns the next usable rows, judging those that were not judged before.
    fn next_drawn(&mut self, batching: &Batching) -> Result<(Vec<usize>, Option<usize>)> {
        let (prompts, skipping) = (&self.prompts, self.skipping.as_ref());
        let skips = |epoch, row| skipping.is_some_and(|skipping| skipping.skips(epoch, row));
        let (rows, skipped) = self.loader.next_usable(|rows| prompts.usable(rows), skips)?;
        let (batch, takes_rest) = self.loader.batch();
        if rows.len() < batch && (!takes_rest || rows.is_empty()) {
            // By now, all rows have been judged.
            let usable = prompts.usable_so_far()?;
            return Err(batching.too_few(usable));
        }
        Ok((rows, skipping.map(|_| skipped)))
    }

    /// Returns the number of batches that were drawn ahead.
    pub(super) fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Returns the position of the next batch to be drawn, and whether it begins an epoch.
    pub(super) fn mark(&self) -> Result<PromptPosition> {
        Ok(PromptPosition { cursor: self.loader.cursor(), streaks: self.own_streaks(), begins_epoch: self.loader_is_at_end()? })
    }

    /// Stores a batch that was drawn at this position until training needs it.
    pub(super) fn push_ahead(&mut self, at: PromptPosition, prompts: Vec<Arc<Prompt>>) {
        self.ahead.push_back(DrawnBatch { prompts, position: at });
    }

    /// Returns the first batch that was drawn ahead.
    pub(super) fn pop_ahead(&mut self) -> Option<Vec<Arc<Prompt>>> {
        self.ahead.pop_front().map(|drawn| drawn.prompts)
    }

    /// Takes the warnings about rows that were drawn since the last call.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.prompts.warnings()
    }

    /// Records the rewards of these prompts' completions.
    pub(super) fn note_rewards(&mut self, experience: &Experience) {
        self.skipping.iter_mut().for_each(|skipping| skipping.note_rewards(experience));
    }

    /// Returns each prompt's number of consecutive passes without differing rewards, if prompts are skipped.
    pub(super) fn streaks(&self) -> Streaks {
        self.ahead.front().map_or_else(|| self.own_streaks(), |next| next.position.streaks.clone())
    }

    fn own_streaks(&self) -> Streaks {
        self.skipping.as_ref().map(|skipping| skipping.streaks.clone()).unwrap_or_default()
    }

    /// Returns whether the next batch begins another epoch.
    ///
    /// # Errors
    /// As [`PromptLoader::next`].
    pub(super) fn is_at_end(&self) -> Result<bool> {
        self.ahead.front().map_or_else(|| self.loader_is_at_end(), |next| Ok(next.position.begins_epoch))
    }

    fn loader_is_at_end(&self) -> Result<bool> {
        if self.prompts.are_drawn() {
            return self.loader.is_at_usable_end(|rows| self.prompts.usable(rows));
        }
        Ok(self.loader.is_at_end())
    }

    /// Returns all prompts.
    pub(crate) fn prompts(&self) -> &PromptSet {
        &self.prompts
    }

    /// Returns the names of the dataset's other columns.
    pub(crate) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns the names of the dataset's other columns, including those of these prompts, since not all rows of a large dataset have been
    /// read.
    pub(super) fn columns_with(&self, prompts: &[Arc<Prompt>]) -> Vec<String> {
        let known: BTreeSet<&String> = self.columns.iter().collect();
        let own = prompts.iter().flat_map(|prompt| prompt.columns.keys()).filter(|name| !known.contains(name));
        let own: BTreeSet<&String> = own.collect();
        known.union(&own).map(|name| (*name).clone()).collect()
    }

    /// Returns a hash of everything that determines the prompts and their columns.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the number of micro-batches per epoch.
    pub(crate) fn micro_batches_per_epoch(&self, batching: &Batching) -> usize {
        let rest = self.loader.partial_batch_size();
        let whole = self.loader.batches_per_epoch() - usize::from(rest > 0);
        whole * batching.micro_batches_per_generation() + rest.div_ceil(batching.sizes.micro_batch)
    }

    /// Returns the number of trained epochs while this many micro-batches wait, if it follows from the position in the order of all rows.
    /// As long as all rows can be used, it equals what the number of steps gives.
    pub(super) fn epochs_drawn(&self, batching: &Batching, waiting: usize) -> Option<f64> {
        if !self.prompts.are_drawn() {
            return None;
        }
        let ((batch, takes_rest), rows) = (self.loader.batch(), self.prompts.len());
        let each = batching.micro_batches_per_generation();
        let rest = if takes_rest { rows % batch } else { 0 };
        let of_rest = rest.div_ceil(batching.sizes.micro_batch);
        let all = (rows / batch * each + of_rest).max(1) as f64;
        let Cursor { epoch, taken } = self.loader.cursor();
        let left = rows.saturating_sub(taken);
        let drawn = match left == 0 || left < batch && !takes_rest {
            true => all,
            false => (taken * each) as f64 / batch as f64,
        };
        Some(epoch as f64 + ((drawn - waiting as f64) / all).clamp(0.0, 1.0))
    }

    /// Returns the number of epochs so far, including the fraction of the current one.
    pub(super) fn passes(&self) -> f64 {
        let Cursor { epoch, taken } = self.loader.cursor();
        epoch as f64 + taken as f64 / self.prompts.len().max(1) as f64
    }

    /// Returns the position of the next batch to be trained on.
    pub(super) fn cursor(&self) -> Cursor {
        self.ahead.front().map_or_else(|| self.loader.cursor(), |next| next.position.cursor)
    }

    /// Moves to a position in the order, with the prompts' streaks at that position. Batches that were drawn ahead are drawn again.
    pub(super) fn seek(&mut self, cursor: Cursor, streaks: Streaks) {
        self.ahead.clear();
        self.loader.seek(cursor);
        self.skipping.iter_mut().for_each(|skipping| skipping.streaks.clone_from(&streaks));
    }
}
