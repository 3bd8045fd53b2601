//! Predictions whose log-probabilities are computed.

use super::{Error, Result};
use crate::ops::Forest;
use crate::ops::logprob::TokenStats;
use crate::ops::support::Restriction;

/// The predictions of a forest that a loss uses, each with the packed position of the predicting hidden state and the actual token.
#[derive(Clone, Debug, Default)]
pub struct SelectedPredictions {
    /// Packed positions, `[M]`.
    pub rows: Vec<usize>,
    /// Token ids, `[M]`.
    pub targets: Vec<u32>,
    /// Tokens among which the targets are scored, if not the whole vocabulary.
    pub restriction: Restriction,
}

impl SelectedPredictions {
    /// Adds all predictions of a segment's tokens.
    pub fn push_segment(&mut self, forest: &Forest, segment: usize) {
        let rows = forest.predictors(segment);
        let range = forest.segments()[segment].range();
        // Without a prefix, nothing predicts the first token.
        let first = range.len() - rows.len();
        self.targets.extend_from_slice(&forest.tokens()[range][first..]);
        self.rows.extend(rows);
    }

    /// Returns the tokens among which the targets are scored; `None` for the whole vocabulary.
    pub(super) fn restriction(&self) -> Option<&Restriction> {
        Some(&self.restriction).filter(|restriction| !restriction.is_empty())
    }

    /// Returns the number of predictions, `M`.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether there are no predictions.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Returns an error if the model's results are not finite.
pub(super) fn finite(stats: &TokenStats) -> Result<()> {
    if stats.logp.iter().all(|logp| logp.is_finite()) { Ok(()) } else { Err(Error::NotFinite) }
}
