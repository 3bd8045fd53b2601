//! The dataset of a run and the order of its rows.

use super::skipping::{Skipping, Streaks};
use crate::config::Config;
use crate::data::{Cursor, Loader};
use crate::train::Result;
use crate::train::dataset::{Prompt, Prompts};
use crate::train::experience::Experience;
use crate::train::flow::Flow;
use std::sync::Arc;

/// Prompts, and the order in which they are drawn.
pub(in crate::train) struct Data {
    prompts: Prompts,
    /// Hash of what determines the prompts and their columns.
    fingerprint: String,
    /// Names of the dataset's other columns.
    columns: Vec<String>,
    loader: Loader,
    /// Prompts that are taken together, if each of the loader's rows stands for several.
    packs: Option<Vec<Vec<usize>>>,
    /// Which prompts are skipped, if some are.
    skipping: Option<Skipping>,
}

impl Data {
    /// Creates the data from prompts. The loader draws them by their rows or by those of `packs`; `evaluated` may have further
    /// columns.
    ///
    /// # Errors
    /// If they can't be hashed.
    pub(in crate::train) fn new(
        prompts: Prompts,
        evaluated: Option<&Prompts>,
        loader: Loader,
        packs: Option<Vec<Vec<usize>>>,
    ) -> Result<Self> {
        let mut columns = prompts.columns().clone();
        columns.extend(evaluated.into_iter().flat_map(|evaluated| evaluated.columns().iter().cloned()));
        let fingerprint = prompts.fingerprint()?;
        Ok(Self { prompts, fingerprint, columns: columns.into_iter().collect(), loader, packs, skipping: None })
    }

    /// Skips prompts as the configuration says.
    #[must_use]
    pub(in crate::train) fn skipping(self, config: &Config) -> Self {
        Self { skipping: Skipping::of(config), ..self }
    }

    /// Returns the next batch, and the number of prompts that were skipped for it, if some may be.
    ///
    /// # Errors
    /// If a row has changed since it was read first.
    pub(super) fn next(&mut self) -> Result<(Vec<Arc<Prompt>>, Option<usize>)> {
        let (rows, skipped) = match &self.skipping {
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

    /// Notes the rewards of these prompts' completions.
    pub(super) fn saw(&mut self, experience: &Experience) {
        self.skipping.iter_mut().for_each(|skipping| skipping.saw(experience));
    }

    /// Returns how many times in a row each prompt's rewards have not differed, if prompts are skipped.
    pub(super) fn streaks(&self) -> Streaks {
        self.skipping.as_ref().map(|skipping| skipping.streaks.clone()).unwrap_or_default()
    }

    /// Returns whether the next batch begins another epoch.
    pub(super) fn is_at_end(&self) -> bool {
        self.loader.is_at_end()
    }

    /// Returns all prompts.
    pub(in crate::train) fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Returns the names of the dataset's other columns.
    pub(in crate::train) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns a hash of what determines the prompts and their columns.
    pub(in crate::train) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the number of micro-batches per epoch.
    pub(in crate::train) fn micro_batches_per_epoch(&self, flow: Flow, config: &Config, ranks: usize) -> usize {
        let loaded = self.loader.batches_per_epoch();
        if !flow.generates() {
            return loaded;
        }
        let (rest, sizes) = (self.loader.rest(), config.batches(ranks));
        let whole = loaded - usize::from(rest > 0);
        whole * sizes.micro_batches_per_pass * config.num_iterations + rest.div_ceil(sizes.micro_batch)
    }

    /// Returns the number of epochs so far, including the fraction of the current one.
    pub(super) fn passes(&self) -> f64 {
        let Cursor { epoch, taken } = self.loader.cursor();
        epoch as f64 + taken as f64 / self.prompts.len().max(1) as f64
    }

    /// Returns the position of the next batch.
    pub(super) fn cursor(&self) -> Cursor {
        self.loader.cursor()
    }

    /// Moves to a position in the order, with the prompts' streaks there.
    pub(super) fn seek(&mut self, cursor: Cursor, streaks: Streaks) {
        self.loader.seek(cursor);
        self.skipping.iter_mut().for_each(|skipping| skipping.streaks.clone_from(&streaks));
    }
}
