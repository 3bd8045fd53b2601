//! Everything a run holds, and the loop over its steps.

use super::evaluation::Evaluation;
use super::origin::Parent;
use super::phases::Phases;
use super::progress::Progress;
use super::saving::Saves;
use super::scoring::Reward;
use super::step::Share;
use super::swap::Swaps;
use super::{Error, Result, RunFolder, Sample};
use crate::config::{Config, LearnFrom};
use crate::data::{Cursor, Loader, StopStrings, Tokenizer};
use crate::dist::World;
use crate::metrics::{Prometheus, Window};
use crate::model::{Frozen, Gradients, ModelFolder, Policy};
use crate::optim::{AdamW, Schedule};
use crate::plugin::{AnyPlugin, Memory, Plugin, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A prompt of the dataset, ready to be continued.
pub(super) struct Prompt {
    /// Row of the dataset.
    pub row: usize,
    pub text: String,
    pub tokens: Vec<u32>,
    /// The dataset's other columns.
    pub columns: Map<String, Value>,
    /// Its answers, in a preference dataset.
    pub answers: Option<Answers>,
    /// Log-probabilities of all tokens of its answers under the reference model, where they are
    /// computed once.
    pub ref_logp: OnceLock<Vec<f32>>,
}

impl Prompt {
    /// Tokens of the prompt and its first answer.
    pub(super) fn length(&self) -> usize {
        self.tokens.len() + self.answers.as_ref().map_or(0, |answers| answers.chosen.len())
    }
}

/// Two answers, in tokens.
pub(super) struct Answers {
    pub chosen: Vec<u32>,
    /// Which of its tokens are learned, where not all are.
    pub learned: Option<Vec<u8>>,
    pub rejected: Vec<u32>,
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
    /// Whether an update has changed the weights.
    pub moved: bool,
    /// Generations since the last one in which a completion had a score.
    pub unscored: u64,
}

/// Whether an algorithm of this role learns from completions of the policy's own.
pub(super) fn generates(role: Role, config: &Config) -> bool {
    match role {
        Role::Preference => false,
        Role::OnlinePreference => true,
        Role::Policy | Role::Reward => config.learn_from == LearnFrom::Generation,
    }
}

/// Micro-batches that a batch of the loader makes.
pub(super) fn shares_per_batch(role: Role, config: &Config) -> usize {
    if generates(role, config) { config.steps_per_generation() * config.num_iterations } else { 1 }
}

/// A run.
pub struct Trainer {
    pub(super) config: Config,
    pub(super) world: Rc<World>,
    pub(super) folder: RunFolder,
    pub(super) source: ModelFolder,
    pub(super) tokenizer: Tokenizer,
    /// Ids that end a completion.
    pub(super) ends: Vec<u32>,
    pub(super) stops: StopStrings,
    pub(super) prompts: Vec<Arc<Prompt>>,
    /// Hash of the prompts and their columns.
    pub(super) dataset: String,
    /// Names of the dataset's other columns.
    pub(super) columns: Vec<String>,
    pub(super) loader: Loader,
    /// Prompts that are dealt together, where each of the loader's rows stands for several.
    pub(super) packs: Option<Vec<Vec<usize>>>,
    pub(super) evaluation: Option<Evaluation>,
    /// What the algorithm's plugin is.
    pub(super) role: Role,
    pub(super) policy: Policy,
    pub(super) reference: Option<Frozen>,
    pub(super) rewards: Vec<Reward>,
    pub(super) algorithm: AnyPlugin,
    pub(super) optimizer: AdamW,
    pub(super) schedule: Schedule,
    pub(super) gradients: Gradients,
    pub(super) pending: VecDeque<Share>,
    pub(super) state: State,
    /// Where the run came from, if it is a fork; the latest last.
    pub(super) parents: Vec<Parent>,
    /// The present step's figures.
    pub(super) figures: Window,
    /// Those of the steps since figures were last logged.
    pub(super) window: Window,
    /// Where the newest figures are served, if they are.
    pub(super) scraped: Option<Prometheus>,
    pub(super) saves: Saves,
    pub(super) swaps: Swaps,
    pub(super) phases: Phases,
    pub(super) max_steps: u64,
    /// When this process began to train.
    pub(super) begun: Instant,
}

/// Steps after which ranks compare their weights, beside when they are saved.
const COMPARE_EVERY: u64 = 100;

/// What a step changes before the update: enough to undo one that failed.
struct Mark {
    state: State,
    cursor: Cursor,
    pending: VecDeque<Share>,
    memories: Vec<(String, Option<Memory>)>,
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
    /// Time that it took.
    pub took: Duration,
    /// What the policy wrote to one prompt before and after.
    pub samples: Vec<Sample>,
}

impl Trainer {
    /// Trains to the last step, or until `stop` is set, logging and saving on the way.
    pub fn run(mut self, stop: &AtomicBool) -> Result<Finished> {
        let mut progress = Progress::new(self.max_steps, self.world.is_first());
        let ended = self.steps(stop, &mut progress);
        let ended = ended.and_then(|finished| {
            self.world.barrier("the end of the run")?;
            Ok(finished)
        });
        progress.finish();
        ended.map_err(|error| {
            let error = self.known_to_all(error);
            self.give_up(error)
        })
    }

    fn steps(&mut self, stop: &AtomicBool, progress: &mut Progress) -> Result<Finished> {
        self.begun = Instant::now();
        self.phases = Phases::new();
        let (save_every, log_every) = (self.config.save_steps.of(self.max_steps), self.config.logging_steps.of(self.max_steps));
        let mut stopped = false;
        let before = self.sample()?;
        self.show_progress();
        if self.config.eval_on_start && self.state.global_step == 0 && self.evaluation.is_some() {
            progress.log_evaluation(0, &self.evaluate()?);
        }
        while self.state.global_step < self.max_steps && !stopped {
            self.swap_plugins()?;
            let mark = self.or_roll_back(Self::mark)?;
            let before = mark.state.global_step;
            self.world.at_step(before);
            if let Err(error) = self.step() {
                let error = self.known_to_all(error);
                self.rewind(mark);
                if self.roll_back(&error)? {
                    continue;
                }
                return Err(error);
            }
            let step = self.state.global_step;
            if step != before + 1 {
                return Err(Error::Counter { from: before, to: step });
            }
            self.gather_figures()?;
            self.show_progress();
            let last = step == self.max_steps;
            stopped = self.any(stop.load(Ordering::Relaxed))? && !last;
            if step.is_multiple_of(log_every) || last {
                let figures = self.window.take();
                self.log_figures(&figures)?;
                progress.log(step, &figures);
            }
            if self.evaluates_after(step) {
                progress.log_evaluation(step, &self.evaluate()?);
            }
            progress.advance(step);
            let saves = step.is_multiple_of(save_every) || last || stopped;
            if saves || step.is_multiple_of(COMPARE_EVERY) {
                self.compare_weights()?;
            }
            if saves {
                // The first rank saves; a state that a plugin does not give is for all ranks to deal with.
                self.or_roll_back(|this| {
                    this.memories()?;
                    Ok(this.world.barrier("states before a checkpoint")?)
                })?;
                self.save()?;
            } else {
                self.settle(false)?;
            }
        }
        let checkpoint = self.last_checkpoint()?;
        self.folder.event(
            if stopped { "stopped" } else { "finished" },
            json!({ "step": self.state.global_step, "seconds": self.begun.elapsed().as_secs_f64() }),
        )?;
        let after = if stopped { None } else { self.sample()? };
        Ok(Finished {
            folder: self.folder.path().to_owned(),
            steps: self.state.global_step,
            checkpoint,
            stopped,
            took: self.begun.elapsed(),
            samples: before.into_iter().chain(after).collect(),
        })
    }

    /// Tells whoever scrapes the run's figures how far it is.
    fn show_progress(&self) {
        if let Some(scraped) = &self.scraped {
            scraped.progress(self.state.global_step, self.swaps.history.len() as u64);
        }
    }

    /// What a failed step is taken back to.
    fn mark(&mut self) -> Result<Mark> {
        let memories = self.memories()?;
        Ok(Mark { state: self.state.clone(), cursor: self.loader.cursor(), pending: self.pending.clone(), memories })
    }

    /// Undoes a step that failed before its update, so that it can be taken again.
    fn rewind(&mut self, mark: Mark) {
        self.loader.seek(mark.cursor);
        (self.state, self.pending) = (mark.state, mark.pending);
        self.figures = Window::default();
        for (plugin, (_, memory)) in self.plugins_mut().zip(mark.memories) {
            plugin.rewind(memory);
        }
    }

    /// All plugins, the algorithm first.
    pub(super) fn plugins_mut(&mut self) -> impl Iterator<Item = &mut Plugin> {
        std::iter::once(self.algorithm.plugin_mut()).chain(self.rewards.iter_mut().map(|reward| &mut *reward.plugin))
    }

    /// Name and state of each plugin.
    pub(super) fn memories(&mut self) -> Result<Vec<(String, Option<Memory>)>> {
        self.plugins_mut().map(|plugin| Ok((plugin.name().to_owned(), plugin.remember()?))).collect()
    }

    /// Saves what was learned before a failure ends the run.
    fn give_up(&mut self, error: Error) -> Error {
        if !self.world.is_first() {
            return error;
        }
        let step = self.state.global_step;
        // The failure itself is what the user must see, whether or not these succeed.
        let _ = self.folder.event("failed", json!({ "step": step, "reason": error.to_string() }));
        let of_saving = matches!(error, Error::Checkpoint(_));
        if step > 0 && !of_saving && !self.saves.has(step) {
            let saved = self.last_checkpoint().or_else(|e| match e {
                // What was learned is worth more than the state of a plugin that keeps it to itself.
                Error::Plugin(_) => {
                    self.plugins_mut().for_each(Plugin::settle_for_known);
                    self.last_checkpoint()
                }
                other => Err(other),
            });
            match saved {
                Ok(path) => tracing::info!("saved {} before stopping", path.display()),
                Err(e) => tracing::error!("{e}"),
            }
        } else if let Err(e) = self.settle(true) {
            tracing::error!("{e}");
        }
        error
    }

    /// Adds a finished step's figures to those of the steps before.
    pub(super) fn gather_figures(&mut self) -> Result<()> {
        self.swap_figures();
        let own = std::mem::take(&mut self.figures);
        let figures = self.merged(own)?;
        let step = self.state.global_step;
        if self.plugins_mut().any(|plugin| plugin.observes()) {
            let reduced: Vec<(String, f64)> = figures.clone().take().into_iter().collect();
            self.or_roll_back(|this| this.tell_plugins(step, &reduced))?;
        }
        self.window.merge(&figures);
        if self.config.best_by().is_some() {
            self.saves.window.merge(&figures);
            self.check_best_metric()?;
        }
        Ok(())
    }

    /// Tells all plugins a step's figures, or after a failure none.
    fn tell_plugins(&mut self, step: u64, figures: &[(String, f64)]) -> Result<()> {
        let memories = self.memories()?;
        let told = self.plugins_mut().try_for_each(|plugin| plugin.observe(step, figures));
        let told = told.map_err(Error::from).and_then(|()| Ok(self.world.barrier("observers")?));
        told.map_err(|error| {
            let error = self.known_to_all(error);
            self.take_back(memories);
            error
        })
    }

    /// Gives plugins back the states that they had, but for those that keep theirs to themselves.
    pub(super) fn take_back(&mut self, memories: Vec<(String, Option<Memory>)>) {
        for (plugin, (_, memory)) in self.plugins_mut().zip(memories).filter(|(plugin, _)| !plugin.forgets()) {
            plugin.rewind(memory);
        }
    }

    /// Writes figures of the present step to metrics.jsonl.
    pub(super) fn log_figures(&mut self, figures: &BTreeMap<String, f64>) -> Result<()> {
        let mut line = Map::new();
        line.insert("step".into(), self.state.global_step.into());
        line.insert("epoch".into(), self.epoch().into());
        line.insert("time".into(), self.begun.elapsed().as_secs_f64().into());
        line.extend(figures.iter().map(|(name, value)| (name.clone(), (*value).into())));
        if let Some(scraped) = &self.scraped {
            scraped.figures(&line);
        }
        self.folder.metrics(line)
    }

    /// What logits are divided by in training: the sampling temperature, for algorithms that learn
    /// from sampled tokens one by one.
    pub(super) fn temperature(&self) -> f32 {
        if self.role == Role::Policy && self.generates() { self.config.temperature as f32 } else { 1.0 }
    }

    /// Whether the algorithm learns from completions of the policy's own.
    pub(super) fn generates(&self) -> bool {
        generates(self.role, &self.config)
    }

    /// Whether the algorithm learns from completions one by one, rather than from pairs.
    pub(super) fn learns_from_rows(&self) -> bool {
        matches!(self.role, Role::Policy | Role::Reward)
    }

    /// Whether the policy still has the weights of the reference model.
    pub(super) fn is_reference(&self) -> bool {
        !self.state.moved && self.parents.is_empty()
    }

    /// Passes over the dataset that were trained on, with the fraction of the present one.
    pub(super) fn epoch(&self) -> f64 {
        let micro_batches = self.state.global_step as f64 * self.config.gradient_accumulation_steps as f64;
        micro_batches / (self.loader.batches_per_epoch() * shares_per_batch(self.role, &self.config)) as f64
    }
}
