//! Failures of rewards.

/// A failed reward, with the rows that have no score.
pub(crate) struct RewardFailure {
    /// Name of the reward.
    pub name: String,
    /// Error of the first attempt.
    pub error: String,
    /// Rows without a score, each with its error.
    pub failed: Vec<(usize, String)>,
}
