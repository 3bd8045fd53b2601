//! The parts of a run and the loop over its steps.

use super::collector::{Collector, CompletionSample, Position};
use super::evaluation::Evaluation;
use super::journal::{Journal, StepRecorder};
use super::learner::Learner;
use super::patience::EarlyStoppingState;
use super::periods::{Calendar, Periods, RecurringAction};
use super::phase::Phase;
use super::plan::RunPlan;
use super::plugins::{PluginStates, RunPlugins};
use super::policy_progress::PolicyProgress;
use super::ranks::{self, known_to_all};
use super::snapshot::InputHashes;
use super::step_metrics::StepClock;
use super::{Error, Result};
use crate::config::RunConfig;
use crate::dist::World;
use crate::model::ModelFolder;
use crate::optim::PlateauDetector;
use crate::plugin::columns::SEQUENCE_VALUE;
use crate::run::RunEvent;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Number of steps between comparisons of the ranks' weights; they are also compared before saving.
const COMPARE_EVERY: u64 = 100;

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TrainerState {
    /// Number of optimizer updates; incremented by one per update and nowhere else.
    pub global_step: u64,
    /// Whether the weights may differ from those of the reference model.
    pub moved: bool,
    /// Whether the evaluation after this step was interrupted, so that a resumed run begins with it.
    pub owes_evaluation: bool,
    /// State of a schedule that follows the evaluations.
    pub plateau: PlateauDetector,
    /// History of evaluations, for early stopping.
    pub patience: EarlyStoppingState,
    /// Hashes of what a resumed run reads again.
    pub inputs: InputHashes,
}

/// A run: the source of experience, the learner, the plugins and the journal. No part knows the trainer.
pub struct Trainer {
    /// The configuration as recorded.
    pub(super) settings: Rc<RunConfig>,
    pub(super) plan: RunPlan,
    pub(super) world: Rc<World>,
    pub(super) plugins: RunPlugins,
    pub(super) collector: Collector,
    pub(super) learner: Learner,
    pub(super) journal: Journal,
    pub(super) evaluation: Option<Evaluation>,
    /// The model that the run started with; its files are copied to checkpoints along with the weights.
    pub(super) source: ModelFolder,
    pub(super) state: TrainerState,
    pub(super) clock: StepClock,
}

/// Receives the progress of a run.
pub trait Listener {
    /// Called after a step.
    fn stepped(&mut self, step: u64);

    /// Called after the metrics of the steps up to this one were logged.
    fn logged(&mut self, step: u64, figures: &BTreeMap<String, f64>);

    /// Called with the metrics of an evaluation after this step.
    fn evaluated(&mut self, step: u64, figures: &BTreeMap<String, f64>);

    /// Called after the last step.
    fn ended(&mut self);
}

/// State that a step changes before the update, for undoing a failed step.
struct RollbackPoint {
    state: TrainerState,
    position: Position,
    plugin_states: PluginStates,
}

/// Outcome of a run.
#[derive(Debug)]
pub struct RunOutcome {
    /// The run's folder.
    pub folder: PathBuf,
    /// Number of optimizer steps taken, also before the run was resumed.
    pub steps: u64,
    /// Number of optimizer steps that this process took.
    pub own_steps: u64,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// Whether there was nothing left to do.
    pub idle: bool,
    /// Whether the run was stopped before its last step.
    pub stopped: bool,
    /// Duration of the run.
    pub took: Duration,
    /// Whether the dataset has conversations.
    pub chat: bool,
    /// Whether the run trained a reward model.
    pub scores: bool,
    /// Completions of one prompt before and after training.
    pub samples: Vec<CompletionSample>,
}

impl Trainer {
    /// Returns the number of the last step.
    pub fn max_steps(&self) -> u64 {
        self.plan.max_steps
    }

    /// Returns the run's steps, and those after which it evaluates and saves.
    pub fn calendar(&self) -> Calendar {
        let Periods { save, evaluate, evaluate_from, .. } = self.plan.periods;
        let evaluations = self.evaluation.as_ref().map(|evaluation| {
            let every = if evaluation.is_regular() { evaluate } else { u64::MAX };
            RecurringAction { every, from: evaluate_from }
        });
        let batching = &self.plan.batching;
        let a_step = batching.sizes.micro_batch * batching.accumulation;
        let evaluated = self.evaluation.as_ref().map_or(0, |evaluation| evaluation.prompts().len());
        let rows = evaluated * batching.group(Phase::Eval);
        Calendar {
            first: self.state.global_step,
            last: self.plan.max_steps,
            evaluations,
            saves: Some(RecurringAction { every: save, from: 0 }),
            evaluation_in_steps: rows as f64 / a_step.max(1) as f64,
        }
    }

    /// Returns the number of completed steps, which other threads may read during the run.
    pub fn steps_done(&self) -> Arc<AtomicU64> {
        self.journal.steps_done()
    }

    /// Returns the run's folder.
    pub fn folder(&self) -> &Path {
        self.journal.path()
    }

    /// Trains to the last step, or until `stop` is set, logging and saving along the way.
    ///
    /// # Errors
    /// If anything fails; what was learned until then is saved.
    pub fn run(mut self, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<RunOutcome> {
        let ended = self.steps(stop, listener);
        let ended = ended.and_then(|finished| {
            self.world.barrier("the end of the run")?;
            Ok(finished)
        });
        listener.ended();
        ended.map_err(|error| {
            let error = known_to_all(&self.world, error);
            self.give_up(error)
        })
    }

    /// Passes the plugins and a recorder at the current step to `change`.
    pub(super) fn record<T>(
        &mut self,
        listener: &mut dyn Listener,
        change: impl FnOnce(&mut RunPlugins, &mut StepRecorder<'_>) -> Result<T>,
    ) -> Result<T> {
        let (step, epoch) = (self.state.global_step, self.epoch());
        let mut show = |step: u64, figures: &BTreeMap<String, f64>| listener.logged(step, figures);
        change(&mut self.plugins, &mut StepRecorder { journal: &mut self.journal, step, epoch, show: &mut show })
    }

    /// Generates a completion of one prompt, to show it.
    fn sample(&mut self, step: u64) -> Result<Option<CompletionSample>> {
        let _whole = self.collector.reads_policy().then(|| self.learner.gather_policy()).transpose()?;
        self.collector.sample(self.learner.policy(), step)
    }

    /// Returns whether all steps are taken, or early stopping has ended the run.
    pub(super) fn is_over(&self) -> bool {
        self.state.global_step >= self.plan.max_steps || self.state.patience.is_lost(&self.plan.evaluation).is_some()
    }

    fn steps(&mut self, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<RunOutcome> {
        self.journal.begin();
        self.meet_in_folder()?;
        let first = self.state.global_step;
        let idle = self.is_over() && !self.state.owes_evaluation;
        let before = if idle { None } else { self.sample(self.state.global_step)? };
        self.show_progress();
        if !idle {
            self.record(listener, |plugins, recorder| recorder.use_versions(plugins.versions()))?;
        }
        let owed = self.state.owes_evaluation;
        if owed || self.plan.evaluation.on_start && self.state.global_step == 0 {
            self.evaluate(stop, listener)?;
        }
        if owed && !self.state.owes_evaluation {
            // Otherwise every run that resumes from the checkpoint would evaluate again.
            self.save_together(listener)?;
        }
        let mut stopped = ranks::any(&self.world, stop.load(Ordering::Relaxed))?;
        while !self.is_over() && !stopped {
            if !self.advance(listener)? {
                continue;
            }
            stopped = self.after_step(stop, listener)?;
        }
        let step = self.state.global_step;
        if let (Some(evaluations), false) =
            (self.state.patience.is_lost(&self.plan.evaluation), stopped || step == self.plan.max_steps)
        {
            self.journal.stops_early(step, evaluations)?;
        }
        // Before the first step there is nothing to save.
        let checkpoint = if step > 0 { self.final_checkpoint(listener)? } else { self.journal.path().to_owned() };
        self.journal.tidy(step);
        let seconds = self.journal.elapsed().as_secs_f64();
        self.journal.event(&if stopped { RunEvent::Stopped { step, seconds } } else { RunEvent::Finished { step, seconds } })?;
        // A signal may have reached only some ranks, and all generate samples together.
        let is_late = stopped || idle || ranks::any(&self.world, stop.load(Ordering::Relaxed))?;
        let after = if is_late { None } else { self.sample(step)? };
        let chat = self.collector.data().prompts().has_chat();
        Ok(RunOutcome {
            idle,
            chat,
            scores: self.plugins.needs().has(SEQUENCE_VALUE),
            folder: self.journal.path().to_owned(),
            steps: step,
            own_steps: step.saturating_sub(first),
            checkpoint,
            stopped,
            took: self.journal.elapsed(),
            samples: before.into_iter().chain(after).collect(),
        })
    }

    /// Swaps plugins and takes a step. Returns false if the step failed, was undone, and is to be retried.
    fn advance(&mut self, listener: &mut dyn Listener) -> Result<bool> {
        self.record(listener, RunPlugins::swap)?;
        let mark = self.or_roll_back(listener, Self::mark)?;
        let before = mark.state.global_step;
        self.world.set_step(before);
        let figures = match self.step() {
            Ok(figures) => figures,
            Err(error) => {
                let error = known_to_all(&self.world, error);
                self.undo(mark);
                return if self.roll_back(&error, listener)? { Ok(false) } else { Err(error) };
            }
        };
        let step = self.state.global_step;
        if step != before + 1 {
            return Err(Error::Counter { from: before, to: step });
        }
        let all = self.gather(figures)?;
        self.or_roll_back(listener, |this| this.observe(&all))?;
        Ok(true)
    }

    /// Logs, evaluates and saves if due. Returns whether the run stops after this step.
    fn after_step(&mut self, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<bool> {
        let step = self.state.global_step;
        self.show_progress();
        self.follow(false)?;
        let requested = self.take_requests(false)?;
        let last = step == self.plan.max_steps;
        if step.is_multiple_of(self.plan.periods.log) || last || step == 1 && self.plan.logs_first_step {
            self.record(listener, |_, recorder| recorder.end_window())?;
        }
        listener.stepped(step);
        if self.evaluation.as_ref().is_some_and(|evaluation| evaluation.is_due(step)) {
            self.evaluate(stop, listener)?;
        } else if requested.evaluates {
            self.evaluate_as_requested(stop, listener)?;
        }
        let stops = ranks::any(&self.world, stop.load(Ordering::Relaxed))? || requested.stops;
        let stopped = stops && (!last || self.state.owes_evaluation);
        let saves = self.saves_at(step) || stopped || requested.saves;
        if saves || step.is_multiple_of(COMPARE_EVERY) {
            ranks::compare_weights(&self.world, &self.learner.trained_everywhere(), step)?;
        }
        if saves {
            self.save_together(listener)?;
        } else {
            self.after_saves(listener)?;
        }
        if requested.pauses == Some(true) && !stopped {
            return self.wait_while_paused(stop, listener);
        }
        Ok(stopped)
    }

    /// Follows the run's folder if it was renamed; see [`Journal::follow`].
    pub(super) fn follow(&mut self, saves: bool) -> Result<()> {
        if let Some(now) = self.journal.follow(saves)? {
            self.plugins.follow(&now);
            self.collector.relocate(&now);
        }
        Ok(())
    }

    /// Returns whether a regular checkpoint is due after this step.
    pub(super) fn saves_at(&self, step: u64) -> bool {
        step.is_multiple_of(self.plan.periods.save) || step == self.plan.max_steps
    }

    /// Updates the progress that the metrics endpoint shows.
    fn show_progress(&self) {
        self.journal.show_progress(self.state.global_step, self.plugins.swaps().len() as u64);
    }

    /// Returns the state for rolling back a failed step.
    fn mark(&mut self) -> Result<RollbackPoint> {
        Ok(RollbackPoint { plugin_states: self.plugins.snapshots()?, state: self.state, position: self.collector.position() })
    }

    /// Undoes a step that failed before its update, so that it can be retried.
    fn undo(&mut self, mark: RollbackPoint) {
        self.state = mark.state;
        self.collector.go_to(mark.position);
        self.plugins.restore(mark.plugin_states);
    }

    /// Rolls back the plugin at fault after an undone failure, if it is on trial; returns whether it did.
    fn roll_back(&mut self, error: &Error, listener: &mut dyn Listener) -> Result<bool> {
        self.record(listener, |plugins, recorder| plugins.roll_back(error, recorder))
    }

    /// Runs an attempt outside a step. If it fails because of a plugin on trial, rolls the plugin back and retries.
    pub(super) fn or_roll_back<T>(&mut self, listener: &mut dyn Listener, attempt: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        loop {
            match attempt(self).map_err(|error| known_to_all(&self.world, error)) {
                Err(error) if self.roll_back(&error, listener)? => {}
                outcome => return outcome,
            }
        }
    }

    /// Saves what was learned before a failure ends the run.
    fn give_up(&mut self, error: Error) -> Error {
        let step = self.state.global_step;
        if !self.world.is_first() {
            if step > 0 && self.learner.is_divided() && !error.is_of_saving() {
                // The first rank reports errors of parts.
                drop(self.save_after_failure());
            }
            return error;
        }
        // The user must see the original failure, whether or not these calls succeed.
        let _ = self.journal.event(&RunEvent::Failed { step, reason: error.to_string() });
        if step > 0 && !error.is_of_saving() && !self.journal.has_checkpoint(step) {
            let saved = self.save_after_failure().or_else(|e| match e {
                // What was learned is worth more than the state of a plugin that can't export it.
                Error::Plugin(_) => {
                    self.plugins.restart_from_exported();
                    self.save_after_failure()
                }
                other => Err(other),
            });
            match saved {
                Ok(path) => tracing::info!("saved {} before stopping", path.display()),
                Err(e) => tracing::error!("{e}"),
            }
        } else {
            let recorded = self.journal.record_saves(true);
            let again = |()| if self.journal.owes_checkpoint() { self.last_checkpoint().map(drop) } else { Ok(()) };
            if let Err(e) = recorded.and_then(again) {
                tracing::error!("{e}");
            }
        }
        self.journal.tidy(step);
        error
    }

    /// Returns the run's position.
    pub(super) fn moment(&self) -> PolicyProgress {
        PolicyProgress { step: self.state.global_step, is_reference: !self.state.moved && self.plan.begins_as_reference }
    }

    /// Returns the number of epochs trained, including the fraction of the current one.
    pub(super) fn epoch(&self) -> f64 {
        self.collector.epochs(self.state.global_step)
    }
}
