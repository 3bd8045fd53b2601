//! The source of experience: draws prompts from the dataset, has completions generated and scored, and splits the result into
//! micro-batches.

mod agents;
mod answers;
mod compared_models;
mod episode_store;
mod episodes;
mod filtering;
mod fingerprint;
mod generation;
mod local;
mod logging_source;
mod mixed_source;
mod prefetch;
mod prompt_loader;
mod prompt_skipper;
mod reference;
mod rehearsal;
mod replay_source;
mod samples;
mod sequences;
pub(super) mod servers;
mod setup;
mod source;
mod teacher_prompts;
mod teacher_record;
mod teacher_server;
mod totals;
mod turns;

pub(super) use compared_models::Teacher;
pub(super) use prompt_loader::PromptLoader;
pub(super) use prompt_skipper::Streaks;
pub use samples::CompletionSample;
pub(super) use source::RunHome;
pub(super) use teacher_server::TeacherServers;
pub(super) use turns::TurnGenerator;

use super::Result;
use super::dataset::Prompt;
use super::experience::{Experience, ExperienceForm, MicroBatch};
use super::journal::Journal;
use super::learner::{Learner, batches_of};
use super::packed_completions::{PackedCompletions, PromptReader};
use super::phase::Phase;
use super::plan::{Batching, RolloutPlan};
use super::plugins::RunPlugins;
use super::policy_progress::PolicyProgress;
use super::shared_model::SharedModel;
use super::step_metrics::{StepMetrics, StepWork};
use crate::config::RolloutLogMode;
use crate::data::{Cursor, shuffle};
use crate::dist::World;
use crate::metrics::{Metric, MetricReduction};
use crate::model::{PolicyModel, PromptPass};
use crate::ops::dropout::mixed_bits;
use crate::plugin::columns::TURN_REWARD;
use crate::run::RunEvent;
use agents::AgentSource;
use compared_models::ComparedModels;
use local::{DecoderSource, EpisodeSource};
use logging_source::LoggingSource;
use mixed_source::MixedSource;
use replay_source::ReplaySource;
use servers::ServerSource;
use source::{RolloutSource, SavedPlace};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// The parts of a run that collecting experience needs.
pub(super) struct CollectionContext<'a> {
    pub learner: &'a Learner,
    pub plugins: &'a mut RunPlugins,
    pub journal: &'a mut Journal,
    pub at: PolicyProgress,
    pub phase: Phase,
}

/// Counts of what has been collected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CollectorCounters {
    /// Number of generations so far.
    pub generation: u64,
    /// Number of tokens trained on; a prompt counts once per completion.
    pub num_tokens: u64,
    /// Number of generations since the last one in which a completion had a score.
    pub unscored: u64,
    /// Number of further times that the waiting generation will be trained on, in other mini-batches.
    pub passes_left: u64,
}

/// A position in the data, with the micro-batches that are waiting there.
#[derive(Clone)]
pub(super) struct Position {
    pub cursor: Cursor,
    pub streaks: Streaks,
    pub pending: VecDeque<MicroBatch>,
    pub counters: CollectorCounters,
}

/// Collects experience: draws prompts from the dataset, has completions generated and scored, and splits the result into micro-batches.
pub(super) struct Collector {
    world: Rc<World>,
    sequences: Rc<dyn SequenceSource>,
    batching: Rc<Batching>,
    rollout: Rc<RolloutPlan>,
    data: PromptLoader,
    turns: Rc<TurnGenerator>,
    source: Box<dyn RolloutSource>,
    compared: ComparedModels,
    /// Maximum length of a prompt with a given completion, in tokens.
    longest: usize,
    /// Micro-batches waiting to be trained on.
    pending: VecDeque<MicroBatch>,
    counters: CollectorCounters,
}

/// The origin of a run's sequences: how an experience is collected, prepared and recorded.
trait SequenceSource {
    /// Collects an experience from these prompts; random numbers depend on the `generation`.
    ///
    /// # Errors
    /// If the sequences can't be collected or scored.
    fn collect(
        &self,
        collector: &mut Collector,
        prompts: Vec<Arc<Prompt>>,
        generation: u64,
        with: &mut CollectionContext<'_>,
    ) -> Result<(Experience, StepMetrics)>;

    /// Adds what the loss sums over to a collected experience: advantages, pairs, or a mask of learned tokens.
    ///
    /// # Errors
    /// If the algorithm fails.
    fn prepare(
        &self,
        collector: &Collector,
        experience: &mut Experience,
        with: &mut CollectionContext<'_>,
    ) -> Result<StepMetrics>;

    /// Adds the columns that the algorithm needs and waiting experiences lack.
    ///
    /// # Errors
    /// If the algorithm fails.
    fn prepare_waiting(&self, collector: &mut Collector, with: &mut CollectionContext<'_>) -> Result<()>;

    /// Records an experience that training will use.
    ///
    /// # Errors
    /// If it can't be written.
    fn record(&self, collector: &mut Collector, experience: &Experience, with: &mut CollectionContext<'_>)
    -> Result<StepMetrics>;
}

/// Returns the rollout source of a run with this plan.
///
/// # Errors
/// As of [`logged_source_of`].
fn source_of(
    plan: &Rc<RolloutPlan>,
    turns: &Rc<TurnGenerator>,
    home: &RunHome,
    world: &Rc<World>,
) -> Result<Box<dyn RolloutSource>> {
    let source = logged_source_of(plan, turns, home, world)?;
    Ok(match plan.off_policy.own_share {
        Some(share) => Box::new(MixedSource::new(source, share, plan.seed, plan.max_completion_length)),
        None => source,
    })
}

/// Returns the source of the policy's rollouts, with a log if the plan has one.
///
/// # Errors
/// If the log of this run, or of the one that it replays, can't be read.
fn logged_source_of(
    plan: &Rc<RolloutPlan>,
    turns: &Rc<TurnGenerator>,
    home: &RunHome,
    world: &Rc<World>,
) -> Result<Box<dyn RolloutSource>> {
    if let Some(run) = &plan.logs.replayed {
        let generates = !plan.has_episodes();
        let decoder = generates.then(|| Box::new(DecoderSource::new(turns.clone())) as Box<dyn RolloutSource>);
        return Ok(Box::new(ReplaySource::new(run, plan, decoder, world.clone())?));
    }
    let source: Box<dyn RolloutSource> = match &plan.servers {
        _ if !plan.agents.is_empty() => Box::new(AgentSource::new(turns.clone(), plan.clone(), home.folder.clone())),
        Some(servers) => {
            Box::new(ServerSource::new(turns.clone(), plan.clone(), servers.clone(), home.model.clone(), world.clone()))
        }
        None if plan.has_environment => Box::new(EpisodeSource::new(turns.clone())),
        None => Box::new(DecoderSource::new(turns.clone())),
    };
    if !home.keeps_log || plan.logs.logged == RolloutLogMode::None {
        return Ok(source);
    }
    Ok(Box::new(LoggingSource::new(source, home, plan, world.clone())?))
}

impl Collector {
    /// Returns the bytes of weights that a training generation copies; 0 if this process generates no completions.
    pub(super) fn copied_bytes(&self, policy: &PolicyModel) -> Result<usize> {
        let generates = self.batching.groups.is_some() && self.rollout.servers.is_none();
        let decoding = generates.then(|| self.turns.decoding(policy, Phase::Train)).transpose()?;
        Ok(decoding.map_or(0, |decoding| decoding.copied_bytes()))
    }

    /// Returns whether collecting experience reads the policy outside of its training passes.
    pub(super) fn reads_policy(&self) -> bool {
        self.batching.groups.is_some()
    }

    /// Adds the columns that the algorithm needs and waiting experiences lack. Returns whether [`Collector::next`] will read the policy for
    /// `count` micro-batches.
    ///
    /// # Errors
    /// If the algorithm fails.
    pub(super) fn prepare_waiting(&mut self, count: usize, with: &mut CollectionContext<'_>) -> Result<bool> {
        self.sequences.clone().prepare_waiting(self, with)?;
        Ok(self.reads_policy() && self.pending.len() < count)
    }

    /// Returns the next `count` micro-batches of all ranks together, or the rest of the epoch, as in transformers: no update mixes rows of
    /// two epochs. All are collected before training begins on any, since a loss is normalised by the whole step.
    pub(super) fn next(&mut self, count: usize, with: &mut CollectionContext<'_>) -> Result<(Vec<MicroBatch>, StepMetrics)> {
        let (mut taken, mut figures) = (Vec::with_capacity(count), StepMetrics::start());
        while taken.len() < count {
            match self.pending.pop_front() {
                Some(micro_batch) => {
                    if self.pending.is_empty() && self.counters.passes_left > 0 {
                        self.reshuffle(&micro_batch.experience);
                    }
                    taken.push(micro_batch);
                }
                // If prompts are skipped, a generation can end anywhere in an epoch.
                None if !taken.is_empty() && !self.batching.epoch.filters_prompts && self.data.is_at_end()? => break,
                None => figures.merge(self.refill(with)?),
            }
        }
        let trained = taken.iter().map(|m| m.experience.num_tokens(m.rows())).sum();
        figures.add_work(StepWork { trained, ..StepWork::default() });
        Ok((taken, figures))
    }

    /// Lets the algorithm estimate the columns that its loss needs and waiting completions lack: those generated under another algorithm,
    /// before a swap or in the run that this one continues.
    fn estimate_anew(&mut self, with: &mut CollectionContext<'_>) -> Result<()> {
        if with.plugins.needs().has(TURN_REWARD) {
            self.drop_without_turns(with.plugins);
        }
        let mut waiting = std::mem::take(&mut self.pending);
        let mut anew: Vec<(Arc<Experience>, Arc<Experience>)> = Vec::new();
        for micro_batch in &mut waiting {
            let before = micro_batch.experience.clone();
            if !with.plugins.lacks_estimates(&before.columns) {
                continue;
            }
            if !anew.iter().any(|(other, _)| Arc::ptr_eq(other, &before)) {
                let mut after = before.reordered(&(0..before.prompts.len()).collect::<Vec<_>>());
                // Their metrics were logged when they were generated.
                self.estimate_advantages(&mut after, with)?;
                anew.push((before.clone(), Arc::new(after)));
            }
            if let Some((_, after)) = anew.iter().find(|(other, _)| Arc::ptr_eq(other, &before)) {
                micro_batch.experience = after.clone();
            }
        }
        self.pending = waiting;
        Ok(())
    }

    /// Drops waiting completions that lack estimates and whose turns are not known, as after resuming: they can't be estimated from the
    /// rewards of turns.
    fn drop_without_turns(&mut self, plugins: &RunPlugins) {
        let before = self.pending.len();
        self.pending
            .retain(|waiting| !(waiting.experience.episodes.is_empty() && plugins.lacks_estimates(&waiting.experience.columns)));
        let dropped = before - self.pending.len();
        if dropped > 0 {
            tracing::info!(
                "dropped {dropped} micro-batches that wait without their turns' rewards, which the algorithm now needs"
            );
        }
        if self.pending.is_empty() {
            self.counters.passes_left = 0;
        }
    }

    /// Returns the pass over the prompts of a step's micro-batches, if the source has kept it, so that training need not repeat it.
    pub(super) fn take_prompt_pass(&mut self, micro_batches: &[MicroBatch], at: PolicyProgress) -> Option<PromptPass> {
        let [micro_batch] = micro_batches else { return None };
        let prompts = &micro_batch.experience.prompts;
        self.source.take_prompt_pass(&prompts[self.world.share(prompts.len())], at.step)
    }

    /// Returns whether the completions of this many prompts are one micro-batch, and the only one of their step.
    fn trains_at_once(&self, prompts: usize, phase: Phase) -> bool {
        let whole = self.batching.accumulation == 1 && self.batching.max_tokens.is_none();
        whole && phase == Phase::Train && self.batching.filter.is_none() && self.parts_of(prompts) == 1
    }

    /// Collects one more generation, split into `num_iterations` rounds of `steps_per_generation` micro-batches, or the dataset's next
    /// pairs or completions as one micro-batch.
    fn refill(&mut self, with: &mut CollectionContext<'_>) -> Result<StepMetrics> {
        let (mut experience, mut figures) = if let Some(filter) = self.batching.clone().filter.as_ref() {
            self.generated_with_spread(filter, with)?
        } else {
            let mut figures = StepMetrics::start();
            let prompts = self.next_prompts(&mut figures, with)?;
            let (experience, collected) = self.collect(prompts, self.counters.generation, with)?;
            figures.merge(collected);
            (experience, figures)
        };
        figures.merge(self.prepare(&mut experience, with)?);
        let experience = Arc::new(experience);
        self.counters.num_tokens += experience.num_tokens(0..experience.rollouts.len());
        figures.add(self.world.once([Metric::new("num_tokens", self.counters.num_tokens as f64, MetricReduction::Max)]));
        figures.merge(self.sequences.clone().record(self, &experience, with)?);
        let (mut rounds, parts) = (self.batching.passes.iterations, self.parts_of(experience.prompts.len()));
        self.counters.passes_left = 0;
        if self.batching.passes.reshuffles {
            self.counters.passes_left = rounds as u64 - 1;
            rounds = 1;
        }
        for _ in 0..rounds {
            self.pending.extend(MicroBatch::split_evenly(&experience, parts));
        }
        Ok(figures)
    }

    /// Returns the number of micro-batches that this many prompts give; the last ones of an epoch may give fewer.
    fn parts_of(&self, prompts: usize) -> usize {
        let whole = self.batching.passes.micro_batches;
        if self.batching.epoch.drops_rest { whole } else { whole.min(prompts.div_ceil(self.batching.sizes.micro_batch)) }
    }

    /// Returns the dataset's next prompts.
    fn draw(&mut self, figures: &mut StepMetrics, with: &mut CollectionContext<'_>) -> Result<Vec<Arc<Prompt>>> {
        let drawn = self.data.next(&self.batching);
        for text in self.data.warnings() {
            tracing::warn!("{text}");
            with.journal.event(&RunEvent::Warning { text: &text })?;
        }
        let (prompts, skipped) = drawn?;
        figures.add(self.world.once(skipped.map(|skipped| prompt_skipper::skipped(skipped, prompts.len()))));
        Ok(prompts)
    }

    /// Splits a generation into different mini-batches for its next pass. Prompts are shuffled, so each prompt's completions stay together.
    /// The order depends on the seed, the generation and the pass.
    fn reshuffle(&mut self, experience: &Experience) {
        let CollectorCounters { generation, passes_left, .. } = self.counters;
        let seed = mixed_bits(self.batching.seed ^ mixed_bits(generation));
        let mut order: Vec<usize> = (0..experience.prompts.len()).collect();
        shuffle(&mut order, seed, passes_left);
        let experience = Arc::new(experience.reordered(&order));
        let parts = self.batching.passes.micro_batches;
        self.pending.extend(MicroBatch::split_evenly(&experience, parts));
        self.counters.passes_left -= 1;
    }

    /// Collects experience from these prompts, to be scored: the policy's own completions, whose random numbers depend on the `generation`,
    /// or those of the dataset.
    pub(super) fn collect(
        &mut self,
        prompts: Vec<Arc<Prompt>>,
        generation: u64,
        with: &mut CollectionContext<'_>,
    ) -> Result<(Experience, StepMetrics)> {
        self.sequences.clone().collect(self, prompts, generation, with)
    }

    /// Adds what the loss sums over to an experience: advantages, pairs, or a mask of learned tokens.
    pub(super) fn prepare(&self, experience: &mut Experience, with: &mut CollectionContext<'_>) -> Result<StepMetrics> {
        self.sequences.prepare(self, experience, with)
    }

    /// Computes a per-token column over packed completions, each rank for its own prompts.
    fn column(&self, e: &Experience, column: impl Fn(&PackedCompletions) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        let own =
            self.own_parts(e).into_iter().map(|rows| column(&PackedCompletions::new(e, rows))).collect::<Result<Vec<_>>>()?;
        Ok(self.world.concat("a column", own.concat())?)
    }

    /// Returns the rows of this rank's prompts, in parts that pass through a model together.
    fn own_parts(&self, e: &Experience) -> Vec<Range<usize>> {
        let rows = e.rows(self.world.share(e.prompts.len()));
        batches_of(e, rows, self.batching.rows, self.batching.max_tokens)
    }

    /// Computes log-probabilities under a frozen model after the prompts that it reads, each rank of its own prompts' completions.
    fn scored_by(&self, model: &SharedModel, reader: PromptReader, e: &Experience) -> Result<Vec<f32>> {
        let own = model.passes(&self.world, self.own_parts(e), |model, watch, rows| {
            let PackedCompletions { forest, selected, .. } = &PackedCompletions::read_by(reader, e, rows);
            Ok(model.score_watched(forest, selected, self.temperature(), watch)?.logp)
        })?;
        Ok(self.world.concat("a column", own.concat())?)
    }

    /// Returns the divisor of logits in training.
    fn temperature(&self) -> f32 {
        self.rollout.sampling.logp_temperature
    }

    /// Returns the number of epochs that this many steps take, including a fraction of the last one; if prompts are skipped, the number so
    /// far.
    pub(super) fn epochs(&self, steps: u64) -> f64 {
        if self.batching.epoch.filters_prompts {
            return self.data.passes();
        }
        let waiting = self.waiting();
        if let Some(epochs) = self.data.epochs_drawn(&self.batching, waiting) {
            return epochs;
        }
        let micro_batches = self.data.micro_batches_per_epoch(&self.batching) as u64;
        let a_step = self.batching.accumulation as u64;
        let updates = micro_batches.div_ceil(a_step).max(1);
        let begun = (steps % updates * a_step) as f64 / micro_batches.max(1) as f64;
        (steps / updates) as f64 + begun
    }

    /// Returns the number of drawn micro-batches that have not been trained on.
    fn waiting(&self) -> usize {
        let passes = self.counters.passes_left as usize * self.batching.passes.micro_batches;
        self.pending.len() + passes + self.data.ahead() * self.batching.micro_batches_per_generation()
    }

    /// Deletes rollout data that was kept for resuming and is now in a checkpoint, before another checkpoint is written.
    ///
    /// # Errors
    /// If it can't be deleted.
    pub(super) fn before_save(&mut self, step: u64, is_saved: &dyn Fn(u64) -> bool) -> Result<()> {
        self.source.before_save(SavedPlace { step, generation: self.counters.generation }, is_saved)
    }

    /// Follows the run's folder to a new path.
    pub(super) fn relocate(&mut self, run: &Path) {
        self.source.relocate(run);
    }

    /// Returns the current position.
    pub(super) fn position(&self) -> Position {
        let (cursor, streaks) = (self.data.cursor(), self.data.streaks());
        Position { cursor, streaks, pending: self.pending.clone(), counters: self.counters }
    }

    /// Returns the counts of what has been collected.
    pub(super) fn counters(&self) -> CollectorCounters {
        self.counters
    }

    /// Continues from a position.
    pub(super) fn go_to(&mut self, position: Position) {
        self.source.discard_begun();
        self.data.seek(position.cursor, position.streaks);
        (self.pending, self.counters) = (position.pending, position.counters);
    }

    /// Continues from a position after an evaluation, which draws no prompts: generations that were begun ahead go on.
    pub(super) fn end_evaluation(&mut self, position: Position) {
        if self.data.ahead() > 0 && self.data.cursor() == position.cursor {
            (self.pending, self.counters) = (position.pending, position.counters);
        } else {
            self.go_to(position);
        }
    }

    /// Returns what all experiences of the run have.
    pub(super) fn form(&self) -> ExperienceForm {
        ExperienceForm { is_sampled: self.batching.groups.is_some(), has_pairs: self.batching.items_are_pairs }
    }

    /// Returns the dataset.
    pub(super) fn data(&self) -> &PromptLoader {
        &self.data
    }

    /// Returns the reference model, if there is one.
    pub(super) fn reference(&self) -> Option<&SharedModel> {
        self.compared.reference.as_ref()
    }
}
