//! What an algorithm learns from: where its sequences come from, and what its loss is a sum over.

use crate::config::{Config, LearnFrom};
use crate::plugin::columns::{LABEL, SEQUENCE_VALUE};
use crate::plugin::{Algorithm, DataSource, Shape};
use std::fmt;

/// The data that an algorithm learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    generates: bool,
    has_pairs: bool,
    has_labels: bool,
    gives_values: bool,
}

impl Flow {
    /// Returns the data of an algorithm, in a run with this setting.
    pub fn new(algorithm: &Algorithm, learn_from: LearnFrom) -> Self {
        let (data, needs) = (algorithm.data(), &algorithm.info().needs);
        Self {
            generates: match data.source {
                DataSource::Policy => true,
                DataSource::Dataset => false,
                DataSource::Either => learn_from == LearnFrom::Generation,
            },
            has_pairs: data.shape == Shape::Pairs,
            has_labels: needs.has(LABEL),
            gives_values: needs.has(SEQUENCE_VALUE),
        }
    }

    /// Returns the data of algorithms that learn from what the policy generates, as pairs or one by one.
    #[cfg(any(test, fuzzing))]
    pub(super) fn generated(has_pairs: bool) -> Self {
        Self { generates: true, has_pairs, has_labels: false, gives_values: false }
    }

    /// Returns whether the policy generates the completions.
    pub fn generates(self) -> bool {
        self.generates
    }

    /// Returns whether it learns from pairs.
    pub fn has_pairs(self) -> bool {
        self.has_pairs
    }

    /// Returns whether completions have labels.
    pub fn has_labels(self) -> bool {
        self.has_labels
    }

    /// Returns whether each completion gets one value, as a reward model gives it.
    pub fn gives_values(self) -> bool {
        self.gives_values
    }

    /// Returns whether the policy's own completions are learned from one by one: GRPO, RLOO, PPO.
    pub(super) fn learns_samples(self) -> bool {
        self.generates && !self.has_pairs
    }

    /// Returns whether a dataset's completions are learned as they are: SFT.
    pub(super) fn imitates(self) -> bool {
        !self.generates && !self.has_pairs && !self.has_labels
    }

    /// Returns the metric that checkpoints and evaluations are compared by where none is named, and whether a greater one is better.
    pub(super) fn usual_metric(self) -> (&'static str, bool) {
        if self.generates { ("reward", true) } else { ("loss", false) }
    }

    /// Returns the divisor of logits in training: the sampling temperature if sampled tokens are learned one by one.
    pub(super) fn temperature(self, config: &Config) -> f32 {
        if self.learns_samples() { config.temperature as f32 } else { 1.0 }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.has_pairs, self.has_labels, self.gives_values) {
            (true, _, true) => "pairs of whole texts with a value each",
            (true, _, false) => "pairs of completions",
            (false, true, _) => "completions with labels",
            (false, false, _) => "completions",
        };
        let whose = if self.generates { "that the policy generates" } else { "of the dataset" };
        write!(f, "{what} {whose}")
    }
}
