//! The source of experience: takes prompts from the dataset, has them answered, scored and judged, and deals what comes of it as
//! micro-batches.

mod data;
mod generation;
mod given;
mod reference;
mod samples;
mod turns;

pub(super) use data::Data;
pub use samples::Sample;
pub(super) use turns::Turns;

use super::Result;
use super::dataset::Prompt;
use super::experience::{Experience, MicroBatch};
use super::figures::{Figures, Work};
use super::flow::Flow;
use super::journal::Journal;
use super::learner::together;
use super::packed::Packed;
use super::plugins::Plugins;
use crate::config::Config;
use crate::data::Cursor;
use crate::dist::World;
use crate::metrics::{Metric, Reduction};
use crate::model::{Frozen, Policy};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Where a run stands, as what is made of completions depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Optimizer updates so far.
    pub step: u64,
    /// Whether the policy still has the weights of the reference model.
    pub is_reference: bool,
}

/// What experience is collected with.
pub(super) struct With<'a> {
    pub policy: &'a Policy,
    pub plugins: &'a mut Plugins,
    pub journal: &'a mut Journal,
    pub at: Moment,
}

/// What has been collected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counters {
    /// Generations so far.
    pub generation: u64,
    /// Tokens that passed through training, prompts once a completion.
    pub num_tokens: u64,
    /// Generations since the last one in which a completion had a score.
    pub unscored: u64,
}

/// A place in the data, with what was collected there and waits.
#[derive(Clone)]
pub(super) struct Position {
    pub cursor: Cursor,
    pub pending: VecDeque<MicroBatch>,
    pub counters: Counters,
}

/// See the module.
pub(super) struct Collector {
    world: Rc<World>,
    settings: Rc<Config>,
    flow: Flow,
    data: Data,
    turns: Turns,
    reference: Option<Frozen>,
    /// Micro-batches that wait to be trained on.
    pending: VecDeque<MicroBatch>,
    counters: Counters,
}

impl Collector {
    /// At the beginning of the data.
    pub(super) fn new(
        world: Rc<World>,
        settings: Rc<Config>,
        flow: Flow,
        data: Data,
        turns: Turns,
        reference: Option<Frozen>,
    ) -> Self {
        let (pending, counters) = (VecDeque::new(), Counters::default());
        Self { world, settings, flow, data, turns, reference, pending, counters }
    }

    /// The next micro-batches of all ranks together, so many. All are there before any is trained on, since a loss divides by
    /// what the whole step holds.
    pub(super) fn next(&mut self, count: usize, with: &mut With<'_>) -> Result<(Vec<MicroBatch>, Figures)> {
        let (mut taken, mut figures) = (Vec::with_capacity(count), Figures::begin());
        while taken.len() < count {
            match self.pending.pop_front() {
                Some(micro_batch) => taken.push(micro_batch),
                None => figures.merge(self.refill(with)?),
            }
        }
        let trained = taken.iter().map(|m| m.experience.num_tokens(m.rows())).sum();
        figures.did(Work { trained, ..Work::default() });
        Ok((taken, figures))
    }

    /// One more generation, dealt as `num_iterations` rounds of `steps_per_generation`
    /// micro-batches; or the dataset's next pairs or completions, which are one.
    fn refill(&mut self, with: &mut With<'_>) -> Result<Figures> {
        let prompts = self.data.next();
        let (experience, mut figures) = self.collect(prompts, self.counters.generation, with)?;
        let experience = Arc::new(experience);
        self.counters.num_tokens += experience.num_tokens(0..experience.rollouts.len());
        figures.add(self.world.once([Metric::new("num_tokens", self.counters.num_tokens as f64, Reduction::Max)]));
        let (mut rounds, mut parts) = (1, 1);
        if self.flow.generates() {
            with.journal.completions(&experience)?;
            figures.lap("log");
            self.counters.generation += 1;
            (rounds, parts) = (self.settings.num_iterations, self.settings.steps_per_generation());
        }
        for _ in 0..rounds {
            self.pending.extend(MicroBatch::deal(&experience, parts));
        }
        Ok(figures)
    }

    /// What is learned from these prompts: completions of the policy's own, whose random numbers
    /// follow from the number of the `generation`, or the dataset's.
    pub(super) fn collect(
        &mut self,
        prompts: Vec<Arc<Prompt>>,
        generation: u64,
        with: &mut With<'_>,
    ) -> Result<(Experience, Figures)> {
        if self.flow.generates() { self.generate(prompts, generation, with) } else { self.given(prompts, with.at) }
    }

    /// A column of all tokens, made of completions packed together, by each rank for its prompts.
    fn column(&self, e: &Experience, column: impl Fn(&Packed) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        let rows = e.rows(self.world.share(e.prompts.len()));
        let mut own = Vec::with_capacity(e.tokens(&rows).len());
        for rows in together(e, rows, self.settings.per_device_train_batch_size, self.settings.max_tokens_per_microbatch) {
            own.extend(column(&Packed::new(e, rows))?);
        }
        Ok(self.world.concat("a column", own)?)
    }

    /// What logits are divided by: see [`Flow::temperature`].
    fn temperature(&self) -> f32 {
        self.flow.temperature(&self.settings)
    }

    /// Micro-batches in a pass over the dataset.
    pub(super) fn micro_batches_per_epoch(&self) -> usize {
        self.data.batches_per_epoch() * micro_batches_per_batch(self.flow, &self.settings)
    }

    /// Where it stands.
    pub(super) fn position(&self) -> Position {
        Position { cursor: self.data.cursor(), pending: self.pending.clone(), counters: self.counters }
    }

    /// Goes on from a position.
    pub(super) fn go_to(&mut self, position: Position) {
        self.data.seek(position.cursor);
        (self.pending, self.counters) = (position.pending, position.counters);
    }

    /// What is learned from.
    pub(super) fn flow(&self) -> Flow {
        self.flow
    }

    /// The dataset.
    pub(super) fn data(&self) -> &Data {
        &self.data
    }

    /// The reference model, where there is one.
    pub(super) fn reference(&self) -> Option<&Frozen> {
        self.reference.as_ref()
    }
}

/// Micro-batches that a batch of the loader makes.
pub(super) fn micro_batches_per_batch(flow: Flow, config: &Config) -> usize {
    if flow.generates() { config.steps_per_generation() * config.num_iterations } else { 1 }
}
