//! Evaluation: the figures of training, under `eval_`, of prompts that are not trained on.

use super::experience::Experience;
use super::step::Learn;
use super::trainer::{Prompt, Trainer};
use super::{Error, Result};
use crate::config::{self, Config};
use crate::metrics::{Metric, Reduction, Window};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The generation that evaluations count as, so that each draws the same random numbers and none
/// those of training.
const GENERATION: u64 = u64::MAX;

/// What a run is evaluated on, and when.
pub(super) struct Evaluation {
    pub prompts: Vec<Arc<Prompt>>,
    /// Steps between evaluations.
    every: u64,
}

impl Evaluation {
    pub(super) fn new(prompts: Vec<Arc<Prompt>>, config: &Config, max_steps: u64) -> Self {
        Self { prompts, every: config.eval_steps.unwrap_or(config.save_steps).of(max_steps) }
    }
}

impl Trainer {
    /// Whether an evaluation is due after this step.
    pub(super) fn evaluates_after(&self, step: u64) -> bool {
        let due = |e: &Evaluation| step.is_multiple_of(e.every) || step == self.max_steps;
        self.evaluation.as_ref().is_some_and(due)
    }

    /// Evaluates, writes the figures down, and remembers them for choosing the best checkpoint.
    pub(super) fn evaluate(&mut self) -> Result<BTreeMap<String, f64>> {
        let Some(prompts) = self.evaluation.as_ref().map(|e| e.prompts.clone()) else { return Ok(BTreeMap::new()) };
        let figures = self.or_roll_back(|this| this.evaluate_on(&prompts))?;
        self.log_figures(&figures)?;
        if let Some((name, _)) = self.config.best_by().filter(|(name, _)| name.starts_with("eval_")) {
            if !figures.contains_key(name) {
                let near = config::nearest(name, figures.keys().map(String::as_str));
                let meant = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                return Err(Error::Unfit(format!("metric_for_best_model: no figure is named {name:?}{meant}")));
            }
            self.saves.window.extend(figures.iter().map(|(name, value)| Metric::new(name, *value, Reduction::Last)));
        }
        Ok(figures)
    }

    /// The figures of an evaluation and nothing else, for a model that is not trained: of the
    /// evaluation's dataset, or of the run's own.
    pub fn evaluate_only(mut self) -> Result<BTreeMap<String, f64>> {
        let prompts = self.evaluation.as_ref().map_or_else(|| self.prompts.clone(), |e| e.prompts.clone());
        let figures = self.evaluate_on(&prompts)?;
        self.world.barrier("the end of an evaluation")?;
        Ok(figures)
    }

    /// Training goes on afterwards as if nothing had been: counters, figures and the plugins' states
    /// are put back. Only a plugin that keeps its state to itself has seen more calls.
    fn evaluate_on(&mut self, prompts: &[Arc<Prompt>]) -> Result<BTreeMap<String, f64>> {
        let begun = Instant::now();
        let (state, memories) = (self.state.clone(), self.memories()?);
        let figures = std::mem::take(&mut self.figures);

        let loss = self.losses(prompts);

        let own = std::mem::replace(&mut self.figures, figures);
        self.state = state;
        self.take_back(memories);
        let loss = self.world.sum("losses of an evaluation", loss?)?;
        Ok(named(self.merged(own)?, loss, prompts.len(), begun.elapsed().as_secs_f64()))
    }

    /// The loss of all prompts, which divides by what all of them hold, whatever micro-batches they
    /// are cut into.
    fn losses(&mut self, prompts: &[Arc<Prompt>]) -> Result<f64> {
        let size = self.config.eval_batch_size();
        let together = match (self.generates(), self.config.per_device_eval_batch_size) {
            (true, None) => self.config.prompts_per_generation(),
            (true, Some(_)) => (size / self.config.group()).max(1),
            (false, _) => size,
        };
        let mut shares = Vec::new();
        for some in prompts.chunks(together.max(1)) {
            let experience = Arc::new(self.experience(some.to_vec(), GENERATION)?);
            let parts = self.items(&experience).div_ceil(size);
            shares.extend(self.deal(&experience, parts));
        }
        let scale = self.scale(&shares);
        self.packed(&shares).iter().map(|share| self.pass(share, scale, Learn::Nothing)).sum()
    }

    /// Rows of an experience, or its pairs.
    pub(super) fn items(&self, experience: &Experience) -> usize {
        if self.learns_from_rows() { experience.rollouts.len() } else { experience.pairs.len() }
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
