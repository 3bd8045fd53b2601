//! The run's plugins: the algorithm, the rewards and the environments. Every call of the algorithm and of rewards goes through this module,
//! which keeps the newest batch of each kind for the trial of the next version.

mod metrics;
mod pair_judge;
mod scoring;
mod scoring_batch;
mod scoring_model;
mod separable;
mod steps;
mod swap;
mod synthetic;

use super::phase::Phase;
use crate::activity::{Activity, ProgressTask};
pub(super) use metrics::from_plugin;
pub(super) use pair_judge::REFERENCE;
pub use scoring::start_of;
pub(super) use scoring::{BatchScores, RewardScorer, RunReward, batch, scored, start};
pub(super) use scoring_batch::ScoringBatch;
pub(super) use scoring_batch::ScoringEpisode;
pub(super) use scoring_model::{Opener, ScoringModel};
pub(super) use separable::is_separable;
pub(super) use swap::{
    ChosenSettings, HandledHashes, PluginSlot, PluginTrial, Predecessor, PredecessorEntry, PredecessorKind, Predecessors, Swap,
    dry_run,
};
pub(super) use synthetic::{RunFeatures, TeacherExtent};

use super::columns::NamedColumns;
use super::ranks::known_to_all;
use super::{Error, Result};
use crate::config::words::followed_by;
use crate::config::{AgentEntry, PluginEntry, RewardErrorAction, RunConfig};
use crate::dist::World;
use crate::metrics::Metric;
use crate::plugin::columns::MISMATCHED_LOGP;
use crate::plugin::{
    AlgorithmPlugin, Assessment, Batch, DerivedMetricHint, EnvironmentPlugin, MicroBatchLoss, NeededInputs, Plugin, PluginState,
    ScoredGeneration, TaughtGeneration, TeacherQuestions,
};
use std::rc::Rc;
use std::sync::Arc;
use swap::Swaps;

/// Name and state of each plugin.
pub(super) type PluginStates = Vec<(String, Option<PluginState>)>;

/// The environments of a run's episodes; none if completions have one turn.
#[derive(Clone, Copy, Default)]
pub(super) struct RunEnvironments<'a> {
    /// The plugins.
    pub plugins: &'a [EnvironmentPlugin],
    /// Configuration entries of the plugins, in the same order.
    pub entries: &'a [PluginEntry],
}

/// The environment or agent that the policy plays episodes with, as the source of a reward.
#[derive(Clone, Debug)]
pub(super) struct Partner {
    /// Name of the reward.
    pub name: String,
    /// Weight of the reward.
    pub weight: f32,
    /// Action on a failed episode.
    pub on_error: RewardErrorAction,
}

/// The run's plugins: the algorithm, the rewards and the environments. Every call of the algorithm and of rewards goes through this type.
pub(super) struct RunPlugins {
    world: Rc<World>,
    /// Configuration of the run; its plugin settings change when plugins do.
    config: RunConfig,
    algorithm: AlgorithmPlugin,
    /// Whether several ranks compute the algorithm's loss together.
    shares_losses: bool,
    rewards: Vec<RunReward>,
    environments: Vec<EnvironmentPlugin>,
    swaps: Swaps,
}

impl RunPlugins {
    /// Creates the plugins of a starting run. New versions are tried on `trial` until there is a newer batch.
    pub(super) fn new(
        world: Rc<World>,
        config: RunConfig,
        algorithm: AlgorithmPlugin,
        (rewards, environments): (Vec<RunReward>, Vec<EnvironmentPlugin>),
        slots: Vec<PluginSlot>,
        trial: PluginTrial,
    ) -> Result<Self> {
        let swaps = Swaps::new(slots, trial);
        let mut plugins = Self { world, config, algorithm, shares_losses: false, rewards, environments, swaps };
        plugins.see_algorithm()?;
        Ok(plugins)
    }

    /// Determines whether the ranks must compute the algorithm's loss together, which is always correct but slower. The first rank decides
    /// for all.
    fn see_algorithm(&mut self) -> Result<()> {
        if self.world.size() > 1 {
            let Self { world, algorithm, .. } = self;
            let shares = || Ok::<_, Error>(!is_separable(algorithm).unwrap_or(false));
            self.shares_losses = world.broadcast("whether a loss compares rows", shares)?;
        }
        Ok(())
    }

    /// Returns whether a loss is computed over a micro-batch's rows on all ranks, since it compares them.
    pub(super) fn shares_losses(&self) -> bool {
        self.shares_losses
    }

    /// Returns the run's environments, with their entries.
    pub(super) fn environments(&self) -> RunEnvironments<'_> {
        RunEnvironments { plugins: &self.environments, entries: &self.config.environment }
    }

    /// Returns the run's environments or its agent, in the order of their indices in episodes.
    pub(super) fn partners(&self) -> Vec<Partner> {
        let environment = |entry: &PluginEntry| {
            let (weight, on_error) = (entry.weight as f32, entry.on_error);
            Partner { name: entry.name().to_owned(), weight, on_error }
        };
        let agent = |entry: &AgentEntry| {
            let (weight, on_error) = (entry.weight as f32, entry.on_error);
            Partner { name: entry.name.clone(), weight, on_error }
        };
        self.config.environment.iter().map(environment).chain(self.config.agent.iter().map(agent)).collect()
    }

    /// Returns whether any reward is a model.
    pub(super) fn has_models(&self) -> bool {
        self.rewards.iter().any(|reward| reward.model().is_some())
    }

    /// Returns whether a plugin, a reward model or an environment of the run has this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let rewards = self.rewards.iter().map(RunReward::name);
        let environments = self.environments.iter().map(|environment| environment.name());
        rewards.chain(environments).any(|own| own == name) || self.algorithm.name() == name
    }

    /// Returns the rows of the last generation on which the reward of this name failed; empty if unknown.
    pub(super) fn failed_rows(&self, name: &str) -> &[usize] {
        // A reward that compares completions has different rows.
        let reward = self.rewards.iter().find(|reward| reward.name() == name && reward.compare().is_none());
        reward.and_then(RunReward::plugin).map_or(&[], |plugin| plugin.failed_rows())
    }

    /// Returns the columns that the algorithm needs.
    pub(super) fn needs(&self) -> &NeededInputs {
        &self.algorithm.info().needs
    }

    /// Returns whether `columns` lack any that the algorithm's loss needs from its estimator.
    pub(super) fn lacks_estimates(&self, columns: &NamedColumns) -> bool {
        self.algorithm.required_estimates().any(|name| columns.get(name).is_none())
    }

    /// Returns whether the algorithm needs other rows' completions after each prompt.
    pub(super) fn needs_mismatched(&self) -> bool {
        self.needs().has(MISMATCHED_LOGP)
    }

    /// Returns the rules for metrics derived from the algorithm's.
    pub(super) fn derived_metrics(&self) -> &[DerivedMetricHint] {
        &self.algorithm.info().hints.derived_metrics
    }

    /// Returns the algorithm's assessment of a generation, and its metrics, which are the same on all ranks.
    pub(super) fn assess(&mut self, generation: ScoredGeneration) -> Result<(Assessment, Vec<Metric>)> {
        let generation = Arc::new(generation);
        let (assessment, metrics) = self.algorithm.assess(&generation)?;
        self.swaps.saw_generation(generation);
        Ok((assessment, from_plugin(metrics)))
    }

    /// Returns whether the algorithm writes what a teacher reads.
    pub(super) fn writes_teacher_prompts(&self) -> bool {
        self.algorithm.writes_teacher_prompts()
    }

    /// Returns what a teacher reads before completions in place of their questions, if the algorithm writes it.
    pub(super) fn teacher_questions(&mut self, generation: TaughtGeneration) -> Result<Option<TeacherQuestions>> {
        Ok(self.algorithm.teacher_questions(generation)?)
    }

    /// Returns the loss of a batch with its derivatives, and the algorithm's metrics of these rows.
    pub(super) fn loss(&mut self, batch: Batch) -> Result<(MicroBatchLoss, Vec<Metric>)> {
        let batch = Arc::new(batch);
        let mut gradient = self.algorithm.loss(&batch)?;
        self.swaps.saw_loss(batch);
        let metrics = from_plugin(std::mem::take(&mut gradient.metrics));
        Ok((gradient, metrics))
    }

    /// Returns whether any plugin observes the metrics of steps.
    pub(super) fn observe_steps(&mut self) -> bool {
        self.all_mut().any(|plugin| plugin.observes())
    }

    /// Passes a step's metrics to all plugins. If one fails, the states of all that export one are restored.
    pub(super) fn observe(&mut self, step: u64, figures: &[(String, f64)]) -> Result<()> {
        let plugin_states = self.snapshots()?;
        let told = self.all_mut().try_for_each(|plugin| plugin.observe(step, figures));
        let told = told.map_err(Error::from).and_then(|()| Ok(self.world.barrier("observers")?));
        told.map_err(|error| {
            let error = known_to_all(&self.world, error);
            self.take_back(plugin_states);
            error
        })
    }

    /// Returns all plugins, the algorithm first, the environments last.
    fn all_mut(&mut self) -> impl Iterator<Item = &mut Plugin> {
        let rewards = self.rewards.iter_mut().filter_map(RunReward::plugin_mut).map(|plugin| &mut **plugin);
        std::iter::once(&mut *self.algorithm).chain(rewards).chain(self.environments.iter_mut().map(|e| &mut **e))
    }

    /// Returns the states of all plugins.
    pub(super) fn snapshots(&mut self) -> Result<PluginStates> {
        self.all_mut().map(|plugin| Ok((plugin.name().to_owned(), plugin.snapshot()?))).collect()
    }

    /// Restores the states of all plugins.
    pub(super) fn restore(&mut self, plugin_states: PluginStates) {
        for (plugin, (_, state)) in self.all_mut().zip(plugin_states) {
            plugin.restore(state);
        }
    }

    /// Restores the states of all plugins except those that don't export one.
    pub(super) fn take_back(&mut self, plugin_states: PluginStates) {
        for (plugin, (_, state)) in self.all_mut().zip(plugin_states).filter(|(plugin, _)| !plugin.loses_state()) {
            plugin.restore(state);
        }
    }

    /// Restores each plugin's saved state, if there is one. A plugin that can't adopt its state starts without one if that is `allowed`.
    pub(super) fn adopt(&mut self, saved: impl Fn(&str) -> Option<Result<PluginState>>, allowed: bool) -> Result<()> {
        for plugin in self.all_mut() {
            let Some(state) = saved(plugin.name()).transpose()? else { continue };
            match plugin.adopt(state) {
                Ok(()) => {}
                Err(error) if allowed => {
                    tracing::warn!("{}", followed_by(&error.to_string(), "it starts without one"));
                    plugin.restore(None);
                }
                Err(error) => {
                    let advice = "--allow-changed starts it without its state";
                    return Err(Error::Changed(followed_by(&error.to_string(), advice)));
                }
            }
        }
        Ok(())
    }

    /// Restores the last exported states of plugins that no longer export one.
    pub(super) fn restart_from_exported(&mut self) {
        self.all_mut().for_each(Plugin::restart_from_exported);
    }
}

impl RunPlugins {
    /// Scores all completions with all rewards; see [`scored`].
    pub(crate) fn score(&mut self, judged: ScoringBatch, phase: Phase) -> Result<BatchScores> {
        let _task = ProgressTask::new(Activity::Scoring);
        let (scored, with_steps) = scored(&mut self.rewards, &self.world, &judged, phase == Phase::Eval)?;
        self.swaps.saw_scores((Arc::new(judged), with_steps.map(Arc::new)), &scored.columns);
        Ok(scored)
    }
}
