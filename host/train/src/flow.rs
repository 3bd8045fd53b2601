//! What an algorithm learns from: the source of its sequences, and the terms of its loss. Only the setup queries it, and passes each part
//! of a run what it needs.

use super::dataset::{DatasetKind, LearnedParts};
use super::pass_metrics::PassMetrics;
use crate::config::{CompletionSource, RunConfig};
use crate::plugin::columns::{
    HostColumn, LABEL, MARGIN, MICRO_BATCH_LABEL, MISMATCHED_LOGP, MISMATCHED_REF_LOGP, OLD_LOGP, PROMPT_LOGP, REF_LOGP,
    SAMPLING_LOGP, SEQUENCE_VALUE,
};
use crate::plugin::{AlgorithmPlugin, DataSource, NeededInputs, Shape, Unit};
use std::fmt;

/// The data that an algorithm learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whether the policy generates the completions.
    pub(super) generates: bool,
    /// Whether the algorithm learns from pairs.
    pub(super) has_pairs: bool,
    /// Whether completions have labels.
    pub(super) has_labels: bool,
    /// Whether each completion gets a single value, as from a reward model.
    gives_values: bool,
    /// Whether the algorithm learns from the scores of rewards.
    pub(super) has_scores: bool,
    /// Whether the algorithm compares the policy's distributions with a teacher's, over given tokens.
    compares_distributions: bool,
    /// Whether some completions are the dataset's although the policy generates others.
    pub(super) mixes: bool,
}

/// The metrics of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetricsPlan {
    /// Default metric for comparing checkpoints and evaluations, and whether a greater value is better.
    pub usual: (&'static str, bool),
    /// Whether evaluations are useful only if a reward scores completions.
    pub of_scores: bool,
    /// Whether there are metrics of generated completions.
    pub of_completions: bool,
    /// Metrics of a pass.
    pub of_pass: PassMetrics,
}

impl Flow {
    /// Returns the data of an algorithm in a run with this configuration.
    pub fn new(algorithm: &AlgorithmPlugin, config: &RunConfig) -> Self {
        let (data, needs) = (algorithm.data(), &algorithm.info().needs);
        let generates = match data.source {
            DataSource::Policy => true,
            DataSource::Dataset => false,
            DataSource::Either => config.completion_source() == CompletionSource::Generation,
        };
        // Completions of the dataset have neither scores nor log-probabilities at sampling.
        let is_of_samples = algorithm.reads_scores() || needs.has(OLD_LOGP) || needs.has(SAMPLING_LOGP);
        let can_mix = data.source == DataSource::Either && data.shape != Shape::Pairs && !is_of_samples;
        Self {
            mixes: can_mix && config.mixes_completions(),
            generates,
            has_scores: generates && algorithm.reads_scores(),
            has_pairs: data.shape == Shape::Pairs,
            has_labels: needs.has(LABEL),
            gives_values: needs.has(SEQUENCE_VALUE),
            compares_distributions: !generates && needs.divergence().is_some(),
        }
    }

    /// Returns the data of algorithms that learn from the policy's completions, as pairs or individually.
    #[cfg(test)]
    pub(super) fn with_generation(has_pairs: bool) -> Self {
        let (generates, has_scores) = (true, true);
        let (has_labels, gives_values, compares_distributions, mixes) = Default::default();
        Self { generates, has_pairs, has_labels, gives_values, has_scores, compares_distributions, mixes }
    }

    /// Returns whether the policy generates completions.
    pub(super) fn generates(self) -> bool {
        self.generates
    }

    /// Returns whether the algorithm learns from given pairs, whose rows have two texts each.
    pub(super) fn rows_are_pairs(self) -> bool {
        self.has_pairs && !self.generates
    }

    /// Returns whether the algorithm learns from the policy's completions individually: GRPO, RLOO, PPO.
    pub(super) fn learns_samples(self) -> bool {
        self.generates && !self.has_pairs
    }

    /// Returns whether the algorithm imitates a dataset's completions: SFT.
    pub(super) fn imitates(self) -> bool {
        !self.generates && !self.has_pairs && !self.has_labels
    }

    /// Returns the kind of the dataset's rows; `learned` are the parts of given completions that are learned.
    pub fn rows(self, learned: LearnedParts) -> DatasetKind {
        match self {
            Self { generates: true, mixes: true, .. } => DatasetKind::AnsweredPrompts,
            Self { generates: true, .. } => DatasetKind::Prompts,
            Self { has_pairs: true, gives_values: true, .. } => DatasetKind::ValuedPairs,
            Self { has_pairs: true, .. } => DatasetKind::Pairs,
            Self { has_labels: true, .. } => DatasetKind::Labelled,
            _ => DatasetKind::Completions(learned),
        }
    }

    /// Checks that a run with this data has the columns that an algorithm needs.
    ///
    /// # Errors
    /// A sentence about the algorithm.
    pub(super) fn check_needs(self, needs: &NeededInputs) -> Result<(), String> {
        let (of_dataset, has_pairs) = (!self.generates, self.has_pairs);
        let has = |name: &&str| match *name {
            LABEL | MICRO_BATCH_LABEL | MISMATCHED_LOGP | MISMATCHED_REF_LOGP => of_dataset && !has_pairs,
            MARGIN => of_dataset && has_pairs && self.gives_values,
            PROMPT_LOGP => has_pairs && !self.gives_values,
            // A pass that computes one value per sequence has no outputs per token.
            name => !(self.gives_values && HostColumn::find(name).is_some_and(|known| known.unit == Unit::Token)),
        };
        if let Some(name) = needs.names().find(|name| !has(name)) {
            return Err(format!("it needs {name:?}, which a run that learns from {self} does not have"));
        }
        let of_reference = needs.has(MISMATCHED_LOGP) || needs.has(MISMATCHED_REF_LOGP);
        if of_reference && !needs.has(REF_LOGP) {
            return Err(format!("it needs mismatched completions, whose columns come with {REF_LOGP:?}, but not that column"));
        }
        Ok(())
    }

    /// Returns which metrics a run has.
    pub(super) fn metrics(self) -> MetricsPlan {
        let of_pass = match self {
            Self { gives_values: true, .. } => PassMetrics::None,
            _ if self.learns_samples() => PassMetrics::Sampling,
            Self { has_labels: true, .. } => PassMetrics::Entropy,
            Self { has_pairs: true, .. } => PassMetrics::EntropyAndChosenAccuracy,
            _ => PassMetrics::Accuracy,
        };
        let usual = if self.has_scores { ("reward", true) } else { ("loss", false) };
        MetricsPlan { usual, of_scores: self.has_scores, of_completions: self.generates, of_pass }
    }

    /// Returns the divisor of logits in training: the sampling temperature if sampled tokens are learned individually or distributions are
    /// compared, otherwise 1.
    pub(super) fn temperature(self, config: &RunConfig) -> f32 {
        if self.learns_samples() || self.compares_distributions { config.temperature as f32 } else { 1.0 }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.has_pairs, self.has_labels, self.gives_values) {
            (true, _, true) => "pairs of whole texts with a value each",
            (true, _, false) => "pairs of completions",
            (false, true, _) => "completions with labels",
            (false, false, true) => "completions with a value each",
            (false, false, false) => "completions",
        };
        let whose = match (self.generates, self.has_scores) {
            _ if self.mixes => "that the policy generates, mixed with the dataset's",
            (true, true) => "that the policy generates",
            (true, false) => "that the policy generates, without their scores",
            (false, _) => "of the dataset",
        };
        write!(f, "{what} {whose}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_a_run_can_not_have_are_refused_by_name() {
        let dataset = |has_pairs, has_labels, gives_values| Flow {
            generates: false,
            has_pairs,
            has_labels,
            gives_values,
            has_scores: false,
            compares_distributions: false,
            mixes: false,
        };
        let (labelled, pairs, values) = (dataset(false, true, false), dataset(true, false, false), dataset(true, false, true));
        let refused = |flow: Flow, names: &[&str]| flow.check_needs(&names.iter().copied().collect()).err();
        for (flow, names) in [
            (labelled, &["logp", "label", "micro_batch/label", "micro_batch/mismatched_logp", "ref_logp"][..]),
            (pairs, &["logp", "ref_logp", "prompt_logp", "log_sum_squares"]),
            (values, &["sequence_value", "margin"]),
            (Flow::with_generation(false), &["logp", "old_logp", "advantage", "turn_reward", "value"]),
            (Flow::with_generation(true), &["logp", "ref_logp", "prompt_logp"]),
        ] {
            assert_eq!(refused(flow, names), None, "{flow}");
        }
        for (flow, names, wrong) in [
            (Flow::with_generation(false), &["logp", "label"][..], "label"),
            (pairs, &["logp", "label"], "label"),
            (pairs, &["logp", "margin"], "margin"),
            (labelled, &["logp", "margin"], "margin"),
            (Flow::with_generation(false), &["logp", "prompt_logp"], "prompt_logp"),
            (values, &["sequence_value", "logp"], "logp"),
            (Flow::with_generation(true), &["logp", "micro_batch/label"], "micro_batch/label"),
            (labelled, &["logp", "label", "micro_batch/mismatched_logp"], "ref_logp"),
        ] {
            let said = refused(flow, names).unwrap_or_default();
            assert!(said.contains(&format!("{wrong:?}")), "{flow}, {names:?}: {said}");
        }
    }

    #[test]
    fn logits_are_divided_where_tokens_are_sampled_or_distributions_compared() {
        let given = Flow { generates: false, has_scores: false, ..Flow::with_generation(false) };
        let config = RunConfig { temperature: 0.5, ..RunConfig::default() };
        let distilled = Flow { compares_distributions: true, ..given };
        let all =
            [Flow::with_generation(false), Flow::with_generation(true), given, distilled].map(|flow| flow.temperature(&config));
        assert_eq!(all, [0.5, 1.0, 1.0, 0.5]);
    }
}
