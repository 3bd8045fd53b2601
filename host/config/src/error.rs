//! Errors of configurations.

use super::files;
use std::path::PathBuf;

/// A configuration that can't be used. The message says what is wrong, where, and what is valid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A value in a file or on the command line is invalid.
    #[error("{place}: {detail}")]
    Invalid {
        /// File and line, or the flag.
        place: String,
        /// What is wrong and what is valid.
        detail: String,
    },
}

impl Error {
    /// Returns whether the user's input is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } => files::is_path_error(source),
            Self::Invalid { .. } => true,
        }
    }
}

/// Result of reading a configuration.
pub type Result<T> = std::result::Result<T, Error>;
