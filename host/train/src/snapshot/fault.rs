//! Faults of the state in a checkpoint.

use crate::run::CheckpointFiles;
use std::fmt;

/// A fault, with the file that has it.
#[derive(Debug)]
pub(super) struct SnapshotFault {
    file: &'static str,
    detail: String,
}

impl SnapshotFault {
    /// Creates a fault of the counters, or of the manifest of waiting rollouts.
    pub(super) fn in_rest(detail: impl Into<String>) -> Self {
        Self { file: CheckpointFiles::SNAPSHOT, detail: detail.into() }
    }

    /// Creates a fault of the numbers of waiting rollouts.
    pub(super) fn in_rollouts(detail: impl Into<String>) -> Self {
        Self { file: CheckpointFiles::ROLLOUTS, detail: detail.into() }
    }
}

impl fmt::Display for SnapshotFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.detail)
    }
}
