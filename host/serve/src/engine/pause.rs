//! Pausing: no tokens are computed, so weights can be replaced without mixing two versions within a request.

use tokio::sync::oneshot::Sender;

/// Treatment of requests in progress during a pause. New requests wait until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// Requests end at once, with the tokens that they have.
    Abort,
    /// Requests finish first.
    Wait,
    /// Requests stop where they are and continue after the pause.
    Keep,
}

/// State of the engine's thread with respect to pauses.
#[derive(Default)]
pub(super) enum PauseState {
    /// The engine works.
    #[default]
    No,
    /// The engine finishes the requests in progress, then notifies these senders.
    Draining(Vec<Sender<()>>),
    /// The engine is paused.
    Paused,
}
