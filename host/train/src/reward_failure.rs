//! What a reward could not score.

/// A reward that failed, and the rows without a score.
pub(crate) struct RewardFailure {
    /// The reward.
    pub name: String,
    /// Why the first attempt failed.
    pub error: String,
    /// The rows that therefore have no score, each with its own error.
    pub failed: Vec<(usize, String)>,
}
