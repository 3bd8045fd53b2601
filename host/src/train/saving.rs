//! When checkpoints are made, which of them is the best, and which are removed.

use super::origin::{Origin, Parent};
use super::trainer::Trainer;
use super::{Error, Result};
use crate::checkpoint::{self, Retained, Writer, Written};
use crate::config::{self, OnSaveError};
use crate::metrics::{self, Metric, Window};
use crate::ops;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

/// The best checkpoint so far.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Best {
    pub step: u64,
    /// Its figure of `metric_for_best_model`.
    pub value: f64,
}

/// Where a run stands with its checkpoints.
pub(super) struct Saves {
    writer: Writer,
    /// Step of the newest checkpoint, which may still be in the writer's hand.
    newest: Option<u64>,
    /// The best, the newest included.
    pub best: Option<Best>,
    /// The best of those that are on the disk for sure.
    best_written: Option<Best>,
    /// Figures of the steps since the newest.
    pub window: Window,
    /// Why the newest could not be written.
    failure: Option<checkpoint::Error>,
    /// Steps of checkpoints that retention leaves alone, as the user has been told.
    left_alone: BTreeSet<u64>,
}

impl Saves {
    pub(super) fn new(run: PathBuf) -> Self {
        Self {
            writer: Writer::new(run),
            newest: None,
            best: None,
            best_written: None,
            window: Window::default(),
            failure: None,
            left_alone: BTreeSet::new(),
        }
    }

    /// The run stands at a checkpoint that it has.
    pub(super) fn begin_at(&mut self, step: u64, best: Option<Best>, window: Window) {
        (self.newest, self.best, self.best_written, self.window) = (Some(step), best, best, window);
    }

    /// Whether this step has a checkpoint, or one in the writer's hand.
    pub(super) fn has(&self, step: u64) -> bool {
        self.newest == Some(step)
    }
}

impl Trainer {
    /// Copies what the future follows from, and has it written while training goes on; the first
    /// rank does, for all. Waits for a checkpoint that is still being written, so that no more than one is ever in hand.
    pub(super) fn save(&mut self) -> Result<()> {
        if !self.world.is_first() {
            return Ok(());
        }
        let begun = Instant::now();
        self.settle(true)?;
        // A checkpoint that is of no use would make older ones go.
        if !ops::sum_of_squares(self.policy.weights().trained().iter().map(|(_, t)| *t))?.is_finite() {
            return Err(Error::WeightsNotFinite);
        }
        let step = self.state.global_step;
        self.compare_with_best();
        let snapshot = self.snapshot()?;
        self.saves.newest = Some(step);
        match self.saves.writer.begin(step, move |to| snapshot.write(to)) {
            Ok(()) => {}
            Err(error) => self.save_failed(step, error)?,
        }
        self.window.extend([Metric::mean("time/checkpoint", begun.elapsed().as_secs_f64(), 1.0)]);
        Ok(())
    }

    /// Takes note of a checkpoint that has been written since the last time; `wait` for the one
    /// in hand.
    pub(super) fn settle(&mut self, wait: bool) -> Result<()> {
        let ended = if wait { self.saves.writer.wait() } else { self.saves.writer.ended() };
        let Some(Written { step, outcome, took }) = ended else { return Ok(()) };
        let path = match outcome {
            Ok(path) => path,
            Err(error) => return self.save_failed(step, error),
        };
        self.saves.best_written = self.saves.best;
        self.saves.failure = None;
        let details = json!({ "step": step, "path": path.display().to_string(), "seconds": took.as_secs_f64() });
        self.folder.event("checkpoint_saved", details)?;
        if let Some(limit) = self.config.save_total_limit {
            let best = self.saves.best.map(|best| best.step);
            let retained = checkpoint::retain(self.folder.path(), limit, best);
            let Retained { removed, left_alone } =
                retained.map_err(|source| Error::Write { path: self.folder.path().to_owned(), source })?;
            if !removed.is_empty() {
                self.folder.event("checkpoints_removed", json!({ "steps": removed }))?;
            }
            for (step, reason) in left_alone {
                if self.saves.left_alone.insert(step) {
                    let path = checkpoint::folder(self.folder.path(), step);
                    tracing::warn!("{} is kept, beside the {limit} of save_total_limit: {reason}", path.display());
                }
            }
        }
        Ok(())
    }

    fn save_failed(&mut self, step: u64, error: checkpoint::Error) -> Result<()> {
        (self.saves.newest, self.saves.best) = (None, self.saves.best_written);
        if self.config.on_save_error == OnSaveError::Fail {
            return Err(error.into());
        }
        tracing::warn!("{error}; going on to the next save");
        self.folder.event("checkpoint_failed", json!({ "step": step, "reason": error.to_string() }))?;
        self.saves.failure = Some(error);
        Ok(())
    }

    /// The run's last checkpoint, on the disk; the best where the run is to end with that.
    pub(super) fn last_checkpoint(&mut self) -> Result<PathBuf> {
        if !self.world.is_first() {
            return Ok(checkpoint::folder(self.folder.path(), self.state.global_step));
        }
        if !self.saves.has(self.state.global_step) {
            self.save()?;
        }
        self.settle(true)?;
        if let Some(error) = self.saves.failure.take() {
            return Err(error.into());
        }
        let best = self.saves.best.filter(|_| self.config.load_best_model_at_end);
        let step = best.map_or(self.state.global_step, |best| best.step);
        if let (Some(best), Some((name, _))) = (best, self.config.best_by()) {
            tracing::info!("the best checkpoint by {name} is of step {} ({})", best.step, best.value);
        }
        Ok(checkpoint::folder(self.folder.path(), step))
    }

    fn compare_with_best(&mut self) {
        let Some((name, greater)) = self.config.best_by() else { return };
        let Some(value) = self.saves.window.take().remove(name).filter(|v| v.is_finite()) else { return };
        let better = |best: Best| if greater { value > best.value } else { value < best.value };
        if self.saves.best.is_none_or(better) {
            self.saves.best = Some(Best { step: self.state.global_step, value });
        }
    }

    /// The run is a new one from here on: it has no checkpoint of its own yet.
    pub(super) fn become_fork(&mut self, origin: &Origin) {
        let checkpoint = std::path::absolute(&origin.checkpoint).unwrap_or_else(|_| origin.checkpoint.clone());
        self.parents.push(Parent { checkpoint, step: origin.step });
        self.saves = Saves::new(self.folder.path().to_owned());
    }

    /// Refuses a `metric_for_best_model` that the run does not have, before much time has gone
    /// into it.
    pub(super) fn check_best_metric(&self) -> Result<()> {
        let Some((name, _)) = self.config.best_by() else { return Ok(()) };
        let names: Vec<&str> = self.saves.window.names().filter(|n| !metrics::is_of_machine(n)).collect();
        if names.contains(&name) || name.starts_with("eval_") {
            return Ok(());
        }
        let meant =
            config::nearest(name, names.iter().copied()).map(|near| format!("did you mean {near:?}? ")).unwrap_or_default();
        Err(Error::Unfit(format!("metric_for_best_model: no figure is named {name:?}; {meant}There are {}", names.join(", "))))
    }
}
