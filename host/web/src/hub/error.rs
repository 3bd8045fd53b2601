//! Why something of the hub can't be had.

use crate::config::files;
use std::path::PathBuf;

/// Why something of the hub can't be had; each says what, where, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The hub has nothing of this name, or does not show it.
    #[error("{name}: {detail}")]
    Missing {
        /// What was asked for.
        name: String,
        /// Where it was looked for, and what may help.
        detail: String,
    },
    /// The hub asks for a permission.
    #[error("{name}: {detail}")]
    Denied {
        /// What was asked for.
        name: String,
        /// What was refused, and how to be let in.
        detail: String,
    },
    /// The hub does not answer, or may not be asked.
    #[error("{name}: {detail}")]
    Unreachable {
        /// What was asked for.
        name: String,
        /// What happened, and what may help.
        detail: String,
    },
    /// What is there can't be used.
    #[error("{name}: {detail}")]
    Unfit {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A file did not come whole.
    #[error("{name}: {detail}")]
    Broken {
        /// What was asked for.
        name: String,
        /// The file and how far it came.
        detail: String,
    },
    /// The cache can't be used.
    #[error("can't use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns whether something that the user gave is at fault, rather than the machine, the network or the program. A name that the
    /// hub can't be asked about may be meant as a path.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::Denied { .. } | Self::Unreachable { .. } | Self::Unfit { .. } => true,
            Self::Broken { .. } => false,
            Self::Io { source, .. } => files::is_path_error(source),
        }
    }
}

/// Result of asking the hub.
pub type Result<T> = std::result::Result<T, Error>;
