//! Evaluation: the figures of training, under `eval_`, of prompts that are not trained on.

use super::collector::With;
use super::dataset::Prompt;
use super::experience::MicroBatch;
use super::figures::Figures;
use super::trainer::Trainer;
use super::{Result, ranks};
use crate::config::Config;
use crate::metrics::{Metric, Window};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The generation that evaluations count as, so that each draws the same random numbers and none
/// those of training.
const GENERATION: u64 = u64::MAX;

/// What a run is evaluated on, and when.
pub(super) struct Evaluation {
    prompts: Vec<Arc<Prompt>>,
    /// Steps between evaluations.
    every: u64,
    /// The step after which there is one in any case.
    last: u64,
}

impl Evaluation {
    /// On these prompts, in a run of so many steps.
    pub(super) fn new(prompts: Vec<Arc<Prompt>>, config: &Config, max_steps: u64) -> Self {
        Self { prompts, every: config.eval_steps.unwrap_or(config.save_steps).of(max_steps), last: max_steps }
    }

    /// Whether there is one after this step.
    pub(super) fn is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.every) || step == self.last
    }

    /// The prompts.
    pub(super) fn prompts(&self) -> &[Arc<Prompt>] {
        &self.prompts
    }
}

impl Trainer {
    /// Evaluates, writes the figures down, and remembers them for choosing the best checkpoint.
    pub(super) fn evaluate(&mut self) -> Result<BTreeMap<String, f64>> {
        let Some(prompts) = self.evaluation.as_ref().map(|e| e.prompts.clone()) else { return Ok(BTreeMap::new()) };
        let figures = self.or_roll_back(|this| this.evaluate_on(&prompts))?;
        self.journal.log(self.state.global_step, self.epoch(), &figures)?;
        self.journal.add_evaluation(&figures)?;
        Ok(figures)
    }

    /// The figures of an evaluation and nothing else, for a model that is not trained: of the
    /// evaluation's dataset, or of the run's own.
    ///
    /// # Errors
    /// What a run can fail with.
    pub fn evaluate_only(mut self) -> Result<BTreeMap<String, f64>> {
        let evaluated = self.evaluation.as_ref().map(|e| e.prompts.clone());
        let prompts = evaluated.unwrap_or_else(|| self.collector.data().prompts().to_vec());
        let figures = self.evaluate_on(&prompts)?;
        self.world.barrier("the end of an evaluation")?;
        Ok(figures)
    }

    /// Training goes on afterwards as if nothing had been: the position in the data and the plugins' states
    /// are put back. Only a plugin that keeps its state to itself has seen more calls.
    fn evaluate_on(&mut self, prompts: &[Arc<Prompt>]) -> Result<BTreeMap<String, f64>> {
        let begun = Instant::now();
        let (position, memories) = (self.collector.position(), self.plugins.memories()?);
        let evaluated = self.losses(prompts);
        self.collector.go_to(position);
        self.plugins.take_back(memories);

        let (loss, own) = evaluated?;
        let loss = self.world.sum("losses of an evaluation", loss)?;
        let mut window = Window::default();
        window.extend(own.into_metrics());
        let all = ranks::merged(&self.world, window)?;
        Ok(named(all, loss, prompts.len(), begun.elapsed().as_secs_f64()))
    }

    /// The loss of all prompts, which divides by what all of them hold, whatever micro-batches they
    /// are cut into.
    fn losses(&mut self, prompts: &[Arc<Prompt>]) -> Result<(f64, Figures)> {
        let (at, mut figures) = (self.moment(), Figures::begin());
        let size = self.settings.eval_batch_size();
        let together = if !self.collector.flow().generates() {
            size
        } else if self.settings.per_device_eval_batch_size.is_some() {
            size / self.settings.group()
        } else {
            self.settings.prompts_per_generation()
        };
        let mut micro_batches = Vec::new();
        for some in prompts.chunks(together.max(1)) {
            let mut with = With { policy: self.learner.policy(), plugins: &mut self.plugins, journal: &mut self.journal, at };
            let (experience, collected) = self.collector.collect(some.to_vec(), GENERATION, &mut with)?;
            figures.merge(collected);
            let parts = experience.items().div_ceil(size);
            micro_batches.extend(MicroBatch::deal(&Arc::new(experience), parts));
        }
        let (loss, evaluated) = self.learner.evaluate(&micro_batches, &mut self.plugins, at)?;
        figures.merge(evaluated);
        Ok((loss, figures))
    }
}

/// Names as transformers has them.
fn named(mut figures: Window, loss: f64, prompts: usize, seconds: f64) -> BTreeMap<String, f64> {
    figures.extend([
        Metric::mean("loss", loss, 1.0),
        Metric::mean("runtime", seconds, 1.0),
        Metric::mean("samples_per_second", prompts as f64 / seconds, 1.0),
    ]);
    figures.take().into_iter().map(|(name, value)| (format!("eval_{name}"), value)).collect()
}
