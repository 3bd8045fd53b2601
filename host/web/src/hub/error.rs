//! Errors of the hub and its cache.

use crate::config::files;
use std::path::PathBuf;

/// Error of the hub: what happened, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The hub has nothing of this name, or does not show it.
    #[error("{name}: {detail}")]
    Missing {
        /// Requested name.
        name: String,
        /// Where it was looked up, and what may help.
        detail: String,
    },
    /// The hub requires permission.
    #[error("{name}: {detail}")]
    Denied {
        /// Requested name.
        name: String,
        /// What was refused, and how to get access.
        detail: String,
    },
    /// The hub does not respond, or requests to it are not allowed.
    #[error("{name}: {detail}")]
    Unreachable {
        /// Requested name.
        name: String,
        /// What happened, and what may help.
        detail: String,
    },
    /// The repository or dataset can't be used.
    #[error("{name}: {detail}")]
    Unfit {
        /// Requested name.
        name: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A file was not downloaded completely.
    #[error("{name}: {detail}")]
    Broken {
        /// Requested name.
        name: String,
        /// The file, and how much of it arrived.
        detail: String,
    },
    /// The cache can't be used.
    #[error("can't use {}: {source}", path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns whether the user's input is at fault, rather than the machine, the network or the program. This includes names that the hub
    /// can't be asked about, since they may be meant as paths.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::Denied { .. } | Self::Unreachable { .. } | Self::Unfit { .. } => true,
            Self::Broken { .. } => false,
            Self::Io { source, .. } => files::is_path_error(source),
        }
    }
}

/// Result of a request to the hub.
pub type Result<T> = std::result::Result<T, Error>;
