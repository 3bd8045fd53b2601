//! What the view needs of the rest of the program.

use std::path::Path;

/// What acts on runs.
pub trait WatchBackend: Send + Sync + 'static {
    /// Sends a file to a running run, to replace the plugin of this name, and waits for what the run says.
    ///
    /// # Errors
    /// If it can't be sent, or the run ends before it answers; a message for the user.
    fn swap(&self, run: &Path, name: &str, file: &str) -> Result<SwapReply, String>;
}

/// What a run made of a plugin that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapReply {
    /// It was swapped in; says when, and how its scores compare.
    Swapped(String),
    /// It was refused; says why.
    Refused(String),
}
