//! What completions are collected for.

/// Whether completions are trained on or evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// They are trained on.
    Train,
    /// They are evaluated, which has its own sampling parameters and rewards.
    Eval,
}
