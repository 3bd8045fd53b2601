//! The position of a run, for everything that depends on it.

/// The part of a run's position that affects how completions are processed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyProgress {
    /// Number of optimizer updates so far.
    pub step: u64,
    /// Whether the policy still has the weights of the reference model.
    pub is_reference: bool,
}
