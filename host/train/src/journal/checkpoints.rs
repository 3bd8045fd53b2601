//! Saves checkpoints, and determines which is the best.

use super::super::{Error, Result};
use super::{Journal, RunFolder};
use crate::checkpoint::{self, JointSave, PartsTimeout, RetentionOutcome, SaveOutcome};
use crate::config::{SaveErrorAction, printable_path};
use crate::metrics::Metric;
use crate::run::{RunEvent, RunFiles};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

/// The first rank's knowledge of joint checkpoints, which all ranks write parts of.
#[derive(Deserialize, Serialize)]
pub(crate) struct JointSaves {
    /// The run's folder.
    folder: PathBuf,
    /// Number of joint checkpoints that were begun.
    begun: u64,
    /// Step of the newest checkpoint.
    newest: Option<u64>,
}

impl Journal {
    /// Returns whether this step has a checkpoint, complete or not.
    pub(crate) fn has_checkpoint(&self, step: u64) -> bool {
        self.saves.newest == Some(step)
    }

    /// Returns whether a checkpoint must be saved because the last one was lost when the folder was renamed or removed.
    pub(crate) fn owes_checkpoint(&self) -> bool {
        self.saves.is_owed
    }

    /// Decides whether a checkpoint of this step is the best so far.
    pub(crate) fn compare_with_best(&mut self, step: u64) {
        if let Some((name, greater)) = self.settings.best_model_metric() {
            self.saves.compare(step, name, greater);
        }
    }

    /// Records that the run ends before its last step, after this many evaluations without improvement.
    pub(crate) fn stops_early(&mut self, step: u64, evaluations: u64) -> Result<()> {
        let settings = self.settings.clone();
        let metric = settings.best_model_metric().map_or("", |(name, _)| name);
        tracing::info!("stopping early after step {step}: {evaluations} evaluations in a row have not improved {metric}");
        self.event(&RunEvent::StoppedEarly { step, evaluations, metric })
    }

    /// Returns the best checkpoint as `trainer_state.json` describes it, with transformers' names.
    pub(crate) fn best_in_words(&self) -> [(&'static str, Value); 3] {
        let best = self.saves.best;
        let folder = best.map(|best| RunFiles(self.path()).checkpoint(best.step).display().to_string());
        [
            ("best_metric", json!(best.map(|best| best.value))),
            ("best_global_step", json!(best.map(|best| best.step))),
            ("best_model_checkpoint", json!(folder)),
        ]
    }

    /// Writes a checkpoint in the background. The previous one must have finished.
    pub(crate) fn write(&mut self, step: u64, fill: impl FnOnce(&Path) -> std::result::Result<(), String> + Send + 'static) {
        self.saves.newest = Some(step);
        (self.saves.begun_in, self.saves.is_owed) = (self.path().to_owned(), false);
        self.saves.writer.begin(step, fill);
    }

    /// Returns the next joint checkpoint: the same one until it is begun.
    pub(crate) fn next_joint_save(&self, step: u64) -> JointSave {
        JointSave { step, number: self.saves.joint + 1 }
    }

    /// Writes the first rank's part of a joint checkpoint in the background, like [`Journal::write`], and waits with this timeout for the
    /// other ranks' parts.
    pub(crate) fn write_joint(
        &mut self,
        save: JointSave,
        timeout: PartsTimeout,
        fill: impl FnOnce(&Path) -> std::result::Result<(), String> + Send + 'static,
    ) {
        (self.saves.joint, self.saves.timeout) = (save.number, Some(timeout));
        self.write(save.step, fill);
    }

    /// Writes a rank's part of a checkpoint in the background, once the previous one is written.
    pub(crate) fn write_part(
        &mut self,
        save: JointSave,
        rank: usize,
        fill: impl FnOnce(&Path) -> std::result::Result<(), String> + Send + 'static,
    ) {
        drop(self.finish_part());
        (self.saves.joint, self.saves.newest) = (save.number, Some(save.step));
        self.saves.writer.begin_part(save, rank, fill);
    }

    /// Waits until this rank's part is written. Returns the error if it failed.
    pub(crate) fn finish_part(&mut self) -> Option<String> {
        if !self.folder.is_of_other_process() {
            return None;
        }
        let error = self.saves.writer.wait()?.outcome.err()?;
        tracing::error!("{error}");
        Some(error.to_string())
    }

    /// Stops waiting for the other ranks' parts of a checkpoint, for this reason.
    pub(crate) fn wait_no_longer(&mut self, reason: String) {
        if let Some(timeout) = &self.saves.timeout {
            *timeout.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        }
    }

    /// Returns the first rank's knowledge of joint checkpoints.
    pub(crate) fn joint_saves(&self) -> JointSaves {
        JointSaves { folder: self.path().to_owned(), begun: self.saves.joint, newest: self.saves.newest }
    }

    /// Adopts the first rank's knowledge of joint checkpoints and of the run's folder. Deletes what is left there of this rank's earlier
    /// parts, since nobody will collect them.
    pub(crate) fn join_saves(&mut self, known: JointSaves, rank: usize) -> Result<()> {
        let JointSaves { folder, begun, newest } = known;
        if !folder.is_dir() {
            let detail = format!(
                "does not see the run's folder {}; each process writes its part of a checkpoint there, so all must see it",
                printable_path(&folder)
            );
            return Err(Error::SetUpsDiffer { rank, detail });
        }
        if let Err(error) = checkpoint::discard_parts(&folder, rank) {
            tracing::warn!("{}: an earlier part of a checkpoint can't be removed: {error}", printable_path(&folder));
        }
        (self.saves.joint, self.saves.newest) = (begun, newest);
        self.saves.set_folder(folder.clone());
        self.folder = RunFolder::from_other_process(folder);
        Ok(())
    }

    /// Records how long training waited for a copy of the state.
    pub(crate) fn waited_for_checkpoint(&mut self, time: Duration) {
        self.window.extend([Metric::mean("time/checkpoint", time.as_secs_f64(), 1.0)]);
    }

    /// Records a checkpoint that has finished since the last call; with `wait`, waits for the current one.
    pub(crate) fn record_saves(&mut self, wait: bool) -> Result<()> {
        let ended = if wait { self.saves.writer.wait() } else { self.saves.writer.take_finished() };
        let Some(SaveOutcome { step, outcome, took }) = ended.filter(|_| !self.folder.is_of_other_process()) else {
            return Ok(());
        };
        let path = match outcome {
            Ok(path) => path,
            Err(error) => return self.save_failed(step, error),
        };
        self.saves.best_written = self.saves.best;
        self.saves.failure = None;
        let path = path.display().to_string();
        self.event(&RunEvent::CheckpointSaved { step, path, seconds: took.as_secs_f64() })?;
        // As in transformers, 0 and negative numbers mean no limit.
        match self.settings.save_total_limit.and_then(|limit| usize::try_from(limit).ok()) {
            None | Some(0) => Ok(()),
            Some(limit) => self.retain(limit),
        }
    }

    fn retain(&mut self, limit: usize) -> Result<()> {
        let best = self.saves.best.map(|best| best.step);
        let retained = checkpoint::retain(self.path(), limit, best);
        let RetentionOutcome { removed, left_alone } =
            retained.map_err(|source| Error::Write { path: self.path().to_owned(), source })?;
        if !removed.is_empty() {
            self.event(&RunEvent::CheckpointsRemoved { steps: removed })?;
        }
        for (step, reason) in left_alone {
            if self.saves.left_alone.insert(step) {
                let path = RunFiles(self.path()).checkpoint(step);
                tracing::warn!("{} is kept in addition to the {limit} of save_total_limit: {reason}", path.display());
                self.event(&RunEvent::CheckpointKept { step, path: path.display().to_string(), reason })?;
            }
        }
        Ok(())
    }

    fn save_failed(&mut self, step: u64, error: checkpoint::Error) -> Result<()> {
        (self.saves.newest, self.saves.best) = (None, self.saves.best_written);
        if !self.folder.is_at(&self.saves.begun_in) {
            tracing::warn!("{error}, since the run's folder was renamed or removed meanwhile; saving again");
            self.saves.is_owed = true;
            return Ok(());
        }
        if self.settings.on_save_error == SaveErrorAction::Fail {
            return Err(error.into());
        }
        tracing::warn!("{error}; continuing to the next save");
        self.event(&RunEvent::CheckpointFailed { step, reason: error.to_string() })?;
        self.saves.failure = Some(error);
        Ok(())
    }

    /// Returns the last checkpoint, of this step, once it is on disk, or the best one if the run ends with that.
    pub(crate) fn last_checkpoint(&mut self, step: u64) -> Result<PathBuf> {
        self.record_saves(true)?;
        if let Some(error) = self.saves.failure.take() {
            return Err(error.into());
        }
        let best = self.saves.best.filter(|_| self.settings.load_best_model_at_end);
        if let (Some(best), Some((name, _))) = (best, self.settings.best_model_metric()) {
            tracing::info!("the best checkpoint by {name} is from step {} ({})", best.step, best.value);
        }
        Ok(RunFiles(self.path()).checkpoint(best.map_or(step, |best| best.step)))
    }
}
