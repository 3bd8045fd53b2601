//! The metrics that the host itself computes of a training pass.

/// Which metrics of a pass there are, by what its loss is a sum over. A pass that predicts no tokens has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassMetrics {
    /// None: whole texts get a value each.
    None,
    /// How far the log-probabilities of training are from those of sampling, for completions that the policy generated.
    Sampling,
    /// The entropy, for completions with labels.
    Entropy,
    /// The entropy, and how often the tokens of chosen completions are the most likely ones, for pairs.
    EntropyAndChosenAccuracy,
    /// How often the given tokens are the most likely ones.
    Accuracy,
}

impl PassMetrics {
    /// Returns the names that `metric_for_best_model` may hold; a prefix covers those of sampling.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::None | Self::Sampling => &[],
            Self::Entropy => &["entropy"],
            Self::EntropyAndChosenAccuracy => &["entropy", "mean_token_accuracy"],
            Self::Accuracy => &["mean_token_accuracy"],
        }
    }
}
