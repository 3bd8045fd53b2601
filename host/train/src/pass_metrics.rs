//! Metrics of a training pass that the host computes.

/// The metrics of a pass, which depend on what its loss sums over. A pass without predictions of tokens has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassMetrics {
    /// No metrics: each text gets a single value.
    None,
    /// Difference between the log-probabilities of training and of sampling, for completions that the policy generated.
    Sampling,
    /// Entropy, for completions with labels.
    Entropy,
    /// Entropy, and accuracy of the chosen completions' tokens, for pairs.
    EntropyAndChosenAccuracy,
    /// Accuracy: the fraction of given tokens that are the most likely ones.
    Accuracy,
}

impl PassMetrics {
    /// Returns the names that `metric_for_best_model` accepts; a prefix covers those of sampling.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::None | Self::Sampling => &[],
            Self::Entropy => &["entropy"],
            Self::EntropyAndChosenAccuracy => &["entropy", "mean_token_accuracy"],
            Self::Accuracy => &["mean_token_accuracy"],
        }
    }
}
