//! Why a configuration can't be used.

use super::files;
use std::path::PathBuf;

/// A configuration that can't be used; the message says what, where and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Something in a file or on the command line is wrong.
    #[error("{place}: {detail}")]
    Invalid {
        /// File and line, or the flag.
        place: String,
        /// What is wrong and what would be right.
        detail: String,
    },
}

impl Error {
    /// Returns whether something that the user gave is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } => files::is_path_error(source),
            Self::Invalid { .. } => true,
        }
    }
}

/// Result of reading a configuration.
pub type Result<T> = std::result::Result<T, Error>;
