//! Errors in writing and reading checkpoints.

use crate::config::shell_word;
use std::path::PathBuf;

/// An error in writing or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint could not be written.
    #[error("can't write checkpoint {}: {detail}", path.display())]
    Write {
        /// Folder of the checkpoint.
        path: PathBuf,
        /// Cause of the failure.
        detail: String,
    },
    /// The checkpoint is damaged or foreign.
    #[error("checkpoint {} can't be used: {detail}", path.display())]
    Damaged {
        /// Folder of the checkpoint.
        path: PathBuf,
        /// Description of the damage.
        detail: String,
    },
    /// The run has no intact checkpoint.
    #[error("{}: {detail}", run.display())]
    None {
        /// Folder of the run.
        run: PathBuf,
        /// Description of what was found instead.
        detail: String,
    },
    /// The run goes on and has not saved yet.
    #[error("{} has no checkpoint yet; `rlhost control {} save` makes one", run.display(), shell_word(run))]
    Unsaved {
        /// Folder of the run.
        run: PathBuf,
    },
}

impl Error {
    /// Returns whether the user's input caused the error, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Write { .. } => false,
            Self::Damaged { .. } | Self::None { .. } | Self::Unsaved { .. } => true,
        }
    }
}
