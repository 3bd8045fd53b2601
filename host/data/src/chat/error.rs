//! What can be wrong with a chat template, or with what it renders.

/// Why a template failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RenderError {
    /// It refuses the conversation, or fails on it.
    #[error("{0}")]
    Refused(String),
    /// It takes too much time or memory.
    #[error("{0}")]
    Unbounded(String),
}
