//! The interface through which the view acts on runs.

use std::path::Path;

/// Performs actions on runs.
pub trait WatchBackend: Send + Sync + 'static {
    /// Sends a file to a running run, to replace the plugin of this name, and waits for the run's answer.
    ///
    /// # Errors
    /// If the file can't be sent, or the run ends before it answers; a message for the user.
    fn swap(&self, run: &Path, name: &str, file: &str) -> Result<SwapReply, String>;
}

/// The run's answer to a plugin that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapReply {
    /// The plugin was swapped in; has a text that says when, and how its scores compare.
    Swapped(String),
    /// The plugin was rejected; has the reason.
    Refused(String),
}
