//! The purpose of completions.

/// Whether completions are trained on or evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Completions are trained on.
    Train,
    /// Completions are evaluated, with their own sampling parameters and rewards.
    Eval,
}
