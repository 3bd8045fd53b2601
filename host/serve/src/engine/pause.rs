//! Pausing: no token is computed, so that weights can be replaced without a request that has tokens of both.

use tokio::sync::oneshot::Sender;

/// What a pause does with the requests under way. New ones wait until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// They end at once, with the tokens that they have.
    Abort,
    /// They are finished first.
    Wait,
    /// They stop where they are and go on afterwards.
    Keep,
}

/// Whether the engine's thread works.
#[derive(Default)]
pub(super) enum PauseState {
    /// It does.
    #[default]
    No,
    /// It finishes what is under way, and then tells these.
    Draining(Vec<Sender<()>>),
    /// It does not.
    Paused,
}
