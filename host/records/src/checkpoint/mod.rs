//! Checkpoint folders of a run. They are written under a temporary name, checksummed, then renamed, so a folder with a
//! checkpoint's name is complete or detectably damaged. Only this module writes them.

mod finite_checker;
mod folder;
mod manifest;
mod parts;
mod required_files;
mod retention;
mod writer;

pub use folder::{newest, replace, save, set_aside, sweep};
pub use manifest::{Manifest, verify};
pub use parts::{JointSave, PartsTimeout, collect_parts, discard_parts, write_part};
pub use retention::{RetentionOutcome, retain};
pub use writer::{CheckpointWriter, SaveOutcome};

use std::path::PathBuf;

/// An error in writing or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be written.
    #[error("can't write checkpoint {}: {detail}", path.display())]
    Write {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What went wrong.
        detail: String,
    },
    /// It is damaged or foreign.
    #[error("checkpoint {} can't be used: {detail}", path.display())]
    Damaged {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A run has no intact checkpoint.
    #[error("{}: {detail}", run.display())]
    None {
        /// The run's folder.
        run: PathBuf,
        /// What was found.
        detail: String,
    },
}

impl Error {
    /// Returns whether something that the user gave is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Write { .. } => false,
            Self::Damaged { .. } | Self::None { .. } => true,
        }
    }
}
