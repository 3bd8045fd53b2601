//! Errors of chat templates.

/// Reason why a template failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RenderError {
    /// The template rejects the conversation, or fails on it.
    #[error("{0}")]
    Refused(String),
    /// The template takes too much time or memory.
    #[error("{0}")]
    Unbounded(String),
}
