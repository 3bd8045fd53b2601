//! Decides when checkpoints are saved, which is the best, and which are removed.

use super::BestCheckpoint;
use crate::checkpoint::{self, CheckpointWriter, PartsTimeout};
use crate::metrics::MetricsWindow;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The state of a run's checkpoints.
pub(super) struct CheckpointSaves {
    pub(super) writer: CheckpointWriter,
    /// Step of the newest checkpoint, which may still be being written.
    pub(super) newest: Option<u64>,
    /// The best, the newest included.
    pub(super) best: Option<BestCheckpoint>,
    /// The best of those that are known to be on disk.
    pub(super) best_written: Option<BestCheckpoint>,
    /// Metrics of the steps since the newest.
    window: MetricsWindow,
    /// The run's folder when the newest was begun.
    pub(super) begun_in: PathBuf,
    /// Whether one could not be written because that folder was renamed or removed meanwhile, and none has been begun since.
    pub(super) is_owed: bool,
    /// Why the newest one could not be written.
    pub(super) failure: Option<checkpoint::Error>,
    /// Number of checkpoints that all ranks have begun to write parts of.
    pub(super) joint: u64,
    /// How long to wait for the parts of the one that is being written.
    pub(super) timeout: Option<PartsTimeout>,
    /// Steps of checkpoints that retention leaves alone and that the user was warned about.
    pub(super) left_alone: BTreeSet<u64>,
}

impl CheckpointSaves {
    /// Creates the state of a run in this folder without checkpoints.
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

    /// Writes checkpoints into this folder from now on.
    pub(super) fn set_folder(&mut self, run: PathBuf) {
        self.writer.set_run(run);
    }

    /// Continues from the run's checkpoint of this step.
    pub(super) fn begin_at(&mut self, step: u64, best: Option<BestCheckpoint>, window: MetricsWindow) {
        (self.newest, self.best, self.best_written, self.window) = (Some(step), best, best, window);
    }

    /// Adds metrics by which checkpoints are compared.
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
