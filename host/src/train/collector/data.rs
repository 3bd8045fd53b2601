//! The dataset of a run and the order of its rows.

use crate::data::{Cursor, Loader};
use crate::train::dataset::Prompt;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Prompts, and the order in which they are drawn.
pub(in crate::train) struct Data {
    prompts: Vec<Arc<Prompt>>,
    /// Hash of the prompts and their columns.
    fingerprint: String,
    /// Names of the dataset's other columns.
    columns: Vec<String>,
    loader: Loader,
    /// Prompts that are taken together, if each of the loader's rows stands for several.
    packs: Option<Vec<Vec<usize>>>,
}

impl Data {
    /// Creates the data from prompts with this `fingerprint`. The loader draws them by their rows or by those of `packs`;
    /// `evaluated` may have further columns.
    pub(in crate::train) fn new(
        prompts: Vec<Arc<Prompt>>,
        evaluated: Option<&[Arc<Prompt>]>,
        fingerprint: String,
        loader: Loader,
        packs: Option<Vec<Vec<usize>>>,
    ) -> Self {
        let all = prompts.iter().chain(evaluated.unwrap_or_default());
        let columns: BTreeSet<String> = all.flat_map(|p| p.columns.keys().cloned()).collect();
        Self { prompts, fingerprint, columns: columns.into_iter().collect(), loader, packs }
    }

    /// Returns the next batch.
    pub(super) fn next(&mut self) -> Vec<Arc<Prompt>> {
        let rows = self.loader.next_batch().into_iter();
        match &self.packs {
            None => rows.map(|row| self.prompts[row].clone()).collect(),
            Some(packs) => rows.flat_map(|pack| &packs[pack]).map(|&row| self.prompts[row].clone()).collect(),
        }
    }

    /// Returns whether the next batch begins another epoch.
    pub(super) fn is_at_end(&self) -> bool {
        self.loader.is_at_end()
    }

    /// Returns all prompts.
    pub(in crate::train) fn prompts(&self) -> &[Arc<Prompt>] {
        &self.prompts
    }

    /// Returns the names of the dataset's other columns.
    pub(in crate::train) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns a hash of the prompts and their columns.
    pub(in crate::train) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the number of batches per epoch.
    pub(in crate::train) fn batches_per_epoch(&self) -> usize {
        self.loader.batches_per_epoch()
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

    /// Moves to a position in the order.
    pub(super) fn seek(&mut self, cursor: Cursor) {
        self.loader.seek(cursor);
    }
}
