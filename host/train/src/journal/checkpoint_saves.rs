//! Tracks the checkpoints of a run: the newest, the best, and those that retention must not delete.

use super::BestCheckpoint;
use crate::checkpoint::{self, CheckpointWriter, PartsTimeout};
use crate::metrics::MetricsWindow;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The state of a run's checkpoints.
pub(super) struct CheckpointSaves {
    pub(super) writer: CheckpointWriter,
    /// Step of the newest checkpoint, which may be incomplete.
    pub(super) newest: Option<u64>,
    /// The best checkpoint, including the newest.
    pub(super) best: Option<BestCheckpoint>,
    /// The best checkpoint that is known to be on disk.
    pub(super) best_written: Option<BestCheckpoint>,
    /// Metrics of the steps since the newest checkpoint.
    window: MetricsWindow,
    /// The run's folder when the newest checkpoint was begun.
    pub(super) begun_in: PathBuf,
    /// Whether a checkpoint failed because that folder was renamed or removed, and none has been begun since.
    pub(super) is_owed: bool,
    /// Error of the newest checkpoint, if it could not be written.
    pub(super) failure: Option<checkpoint::Error>,
    /// Number of joint checkpoints that all ranks have begun.
    pub(super) joint: u64,
    /// Timeout for the other ranks' parts of the current checkpoint.
    pub(super) timeout: Option<PartsTimeout>,
    /// Steps of checkpoints that retention does not delete, and that the user was warned about.
    pub(super) left_alone: BTreeSet<u64>,
}

impl CheckpointSaves {
    /// Creates the state of a run without checkpoints, in this folder.
    pub(super) fn new(run: PathBuf) -> Self {
        Self {
            begun_in: run.clone(),
            is_owed: false,
            writer: CheckpointWriter::new(run),
            newest: None,
            best: None,
            best_written: None,
            window: MetricsWindow::default(),
            failure: None,
            joint: 0,
            timeout: None,
            left_alone: BTreeSet::new(),
        }
    }

    /// Changes the folder for later checkpoints.
    pub(super) fn set_folder(&mut self, run: PathBuf) {
        self.writer.set_run(run);
    }

    /// Continues from the run's checkpoint of this step.
    pub(super) fn begin_at(&mut self, step: u64, best: Option<BestCheckpoint>, window: MetricsWindow) {
        (self.newest, self.best, self.best_written, self.window) = (Some(step), best, best, window);
    }

    /// Adds metrics for the comparison of checkpoints.
    pub(super) fn add(&mut self, figures: &MetricsWindow) {
        self.window.merge(figures);
    }

    /// Returns the names of the metrics since the newest checkpoint.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.window.names()
    }

    /// Returns the metrics since the newest checkpoint, and the best checkpoint.
    pub(super) fn state(&self) -> (MetricsWindow, Option<BestCheckpoint>) {
        (self.window.clone(), self.best)
    }

    /// Uses the metrics since the newest checkpoint to judge the checkpoint of this step.
    pub(super) fn compare(&mut self, step: u64, name: &str, greater: bool) {
        let Some(value) = self.window.take().remove(name).filter(|v| v.is_finite()) else { return };
        let better = |best: BestCheckpoint| if greater { value > best.value } else { value < best.value };
        if self.best.is_none_or(better) {
            self.best = Some(BestCheckpoint { step, value });
        }
    }
}
