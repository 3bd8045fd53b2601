//! Everything a run holds, and the loop over its steps.

use super::phases::Phases;
use super::progress::Progress;
use super::step::Share;
use super::{Result, RunFolder};
use crate::checkpoint;
use crate::config::Config;
use crate::data::{Cursor, Loader, StopStrings, Tokenizer};
use crate::metrics::Window;
use crate::model::{Frozen, ModelFolder, Policy, Weights};
use crate::optim::{AdamW, Schedule};
use crate::plugin::{PolicyPlugin, RewardPlugin};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A prompt of the dataset, ready to be continued.
pub(super) struct Prompt {
    /// Row of the dataset.
    pub row: usize,
    pub text: String,
    pub tokens: Vec<u32>,
    /// The dataset's other columns.
    pub columns: Map<String, Value>,
}

/// Counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct State {
    /// Optimizer updates; rises by one an update and nowhere else.
    pub global_step: u64,
    /// Generations so far.
    pub generation: u64,
    /// Tokens that passed through training, prompts once a completion.
    pub num_tokens: u64,
}

/// A run.
pub struct Trainer {
    pub(super) config: Config,
    pub(super) folder: RunFolder,
    pub(super) source: ModelFolder,
    pub(super) tokenizer: Tokenizer,
    /// Ids that end a completion.
    pub(super) ends: Vec<u32>,
    pub(super) stops: StopStrings,
    pub(super) prompts: Vec<Arc<Prompt>>,
    /// Names of the dataset's other columns.
    pub(super) columns: Vec<String>,
    pub(super) loader: Loader,
    pub(super) policy: Policy,
    pub(super) reference: Option<Frozen>,
    pub(super) rewards: Vec<(RewardPlugin, f32)>,
    pub(super) algorithm: PolicyPlugin,
    pub(super) optimizer: AdamW,
    pub(super) schedule: Schedule,
    pub(super) gradients: Weights,
    pub(super) pending: VecDeque<Share>,
    pub(super) state: State,
    pub(super) window: Window,
    pub(super) phases: Phases,
    pub(super) max_steps: u64,
}

/// What a step changes before the update: enough to undo one that failed.
struct Mark {
    state: State,
    cursor: Cursor,
    pending: VecDeque<Share>,
    window: Window,
}

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// Its folder.
    pub folder: PathBuf,
    /// Optimizer steps taken.
    pub steps: u64,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// Whether it was stopped before its last step.
    pub stopped: bool,
}

impl Trainer {
    /// Trains to the last step, or until `stop` is set, logging and saving on the way.
    pub fn run(mut self, stop: &AtomicBool) -> Result<Finished> {
        let begun = Instant::now();
        let mut progress = Progress::new(self.max_steps);
        // A resumed run may stand at a checkpoint already, even at the last one.
        let mut saved = Some(checkpoint::folder(self.folder.path(), self.state.global_step)).filter(|path| path.exists());
        let mut stopped = false;
        while self.state.global_step < self.max_steps && !stopped {
            let mark = self.mark();
            if let Err(error) = self.step() {
                progress.finish();
                self.rewind(mark);
                return Err(self.give_up(error, saved.as_ref()));
            }
            let step = self.state.global_step;
            if step != mark.state.global_step + 1 {
                return Err(super::Error::Counter { from: mark.state.global_step, to: step });
            }
            let last = step == self.max_steps;
            stopped = stop.load(Ordering::Relaxed) && !last;
            if step.is_multiple_of(self.config.logging_steps) || last {
                let figures = self.log(begun)?;
                progress.log(step, self.max_steps, &figures);
            }
            progress.advance(step);
            if step.is_multiple_of(self.config.save_steps) || last || stopped {
                saved = Some(self.save()?);
            }
        }
        progress.finish();
        let checkpoint = match saved {
            Some(path) => path,
            None => self.save()?,
        };
        self.folder.event(
            if stopped { "stopped" } else { "finished" },
            json!({ "step": self.state.global_step, "seconds": begun.elapsed().as_secs_f64() }),
        )?;
        Ok(Finished { folder: self.folder.path().to_owned(), steps: self.state.global_step, checkpoint, stopped })
    }

    fn mark(&self) -> Mark {
        let (state, cursor) = (self.state.clone(), self.loader.cursor());
        Mark { state, cursor, pending: self.pending.clone(), window: self.window.clone() }
    }

    /// Undoes a step that failed before its update, so that it can be taken again.
    fn rewind(&mut self, mark: Mark) {
        self.loader.seek(mark.cursor);
        (self.state, self.pending, self.window) = (mark.state, mark.pending, mark.window);
    }

    /// Saves what was learned before a failure ends the run.
    fn give_up(&mut self, error: super::Error, saved: Option<&PathBuf>) -> super::Error {
        let step = self.state.global_step;
        // The failure itself is what the user must see, whether or not these succeed.
        let _ = self.folder.event("failed", json!({ "step": step, "reason": error.to_string() }));
        let already = saved.is_some_and(|path| path.ends_with(format!("checkpoint-{step}")));
        if step > 0 && !already {
            match self.save() {
                Ok(path) => tracing::info!("saved {} before stopping", path.display()),
                Err(e) => tracing::error!("{e}"),
            }
        }
        error
    }

    /// Writes the window's figures to metrics.jsonl.
    fn log(&mut self, begun: Instant) -> Result<BTreeMap<String, f64>> {
        let figures = self.window.take();
        let mut line = Map::new();
        line.insert("step".into(), self.state.global_step.into());
        line.insert("epoch".into(), self.epoch().into());
        line.insert("time".into(), begun.elapsed().as_secs_f64().into());
        line.extend(figures.iter().map(|(name, value)| (name.clone(), (*value).into())));
        self.folder.metrics(line)?;
        Ok(figures)
    }

    /// Passes over the dataset that were trained on, with the fraction of the present one.
    pub(super) fn epoch(&self) -> f64 {
        let micro_batches = self.state.global_step as f64 * self.config.gradient_accumulation_steps as f64;
        micro_batches / self.config.micro_batches_per_epoch(self.loader.batches_per_epoch()) as f64
    }

    fn save(&mut self) -> Result<PathBuf> {
        let step = self.state.global_step;
        let path = checkpoint::save(self.folder.path(), step, |to| self.write_checkpoint(to))?;
        self.folder.event("checkpoint_saved", json!({ "step": step, "path": path.display().to_string() }))?;
        if let Some(limit) = self.config.save_total_limit {
            let removed = checkpoint::retain(self.folder.path(), limit);
            removed.map_err(|source| super::Error::Write { path: self.folder.path().to_owned(), source })?;
        }
        Ok(path)
    }
}
