//! Statistics of given tokens from a forward pass.

use super::mean_rows::MeanRows;

/// Results of a forward pass for each of the `M` rows.
#[derive(Clone, Debug, Default)]
pub struct TokenStats {
    /// Log-probability of the target token, natural logarithm.
    pub logp: Vec<f32>,
    /// Entropy of the complete distribution, in nats.
    pub entropy: Vec<f32>,
    /// Whether no token was more likely than the target.
    pub top: Vec<bool>,
    /// Logarithm of the normaliser.
    pub(super) log_sum: Vec<f32>,
    /// Sums with which the backward pass avoids computing logits.
    pub(super) mean_rows: Option<MeanRows>,
    /// Share of each target that is spread evenly over the vocabulary; see [`super::logprob::smooth`].
    pub(super) smoothing: f32,
}
