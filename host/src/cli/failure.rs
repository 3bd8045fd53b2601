//! Failures of a command.

use super::error_kind;

/// Reason why a command failed.
pub(crate) enum CommandFailure {
    /// The user's input is wrong.
    Mistake(anyhow::Error),
    /// The work or the machine failed.
    Failed(anyhow::Error),
    /// A signal stopped the run; everything is saved.
    Stopped,
    /// Another process of the run reports the reason; this one ends with the same exit code.
    ReportedElsewhere(u8),
}

impl CommandFailure {
    /// Classifies an error by its kind. An error created in `cli` is a user mistake.
    pub(in crate::cli) fn from_error(error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        if error_kind::is_mistake(&error).unwrap_or(true) { Self::Mistake(error) } else { Self::Failed(error) }
    }

    pub(in crate::cli) fn mistake(error: impl Into<anyhow::Error>) -> Self {
        Self::Mistake(error.into())
    }

    pub(in crate::cli) fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }
}
