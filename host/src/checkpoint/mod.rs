//! Checkpoint folders of a run: written aside, summed, then renamed into place, so that a folder
//! with a checkpoint's name is whole or tells that it is not. Only this room writes them.

mod finite;
mod folder;
mod manifest;
mod retention;
mod writer;

pub use folder::{folder, is_checkpoint, newest, save, set_aside, steps, sweep};
pub use manifest::{Manifest, verify};
pub use retention::{Retained, retain};
pub use writer::{Writer, Written};

use std::path::PathBuf;

/// Why a checkpoint could not be written or read.
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
    /// A run has none that is whole.
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
