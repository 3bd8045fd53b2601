//! Runs evaluations.

use super::collector::CollectionContext;
use super::dataset::Prompt;
use super::experience::{Experience, MicroBatch};
use super::phase::Phase;
use super::plan::Batching;
use super::step_metrics::StepMetrics;
use super::trainer::{Listener, Trainer};
use super::{Error, Result, pass_at_k, ranks};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::config;
use crate::data::pack;
use crate::metrics::{Metric, MetricsWindow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Generation number of evaluations. All evaluations use the same random numbers, which training does not use.
pub(super) const GENERATION: u64 = u64::MAX;

impl Trainer {
    /// Evaluates, logs the metrics, and records them for choosing the best checkpoint. If `stop` is set meanwhile, the evaluation is
    /// abandoned, and a resumed run begins with it.
    pub(super) fn evaluate(&mut self, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<()> {
        let Some(evaluation) = &self.evaluation else { return Ok(()) };
        let prompts = evaluation.prompts.all()?.to_vec();
        let step = self.state.global_step;
        let figures = self.or_roll_back(listener, |this| this.evaluate_on(&prompts, Some(stop)))?;
        self.state.owes_evaluation = figures.is_none();
        let Some(figures) = figures else { return Ok(()) };
        self.journal.log(step, self.epoch(), &figures)?;
        let is_score = |name: &String| name.starts_with("eval_rewards/") && name.ends_with("/mean");
        if !self.plan.evaluation.needs_scores || figures.keys().any(is_score) {
            self.journal.add_evaluation(&figures)?;
            self.follow_evaluation(&figures)?;
        } else {
            tracing::warn!("the evaluation at step {step} has nothing to compare: no reward could score any of its completions");
        }
        self.state.patience = self.state.patience.after(&self.plan.evaluation, step, &figures);
        listener.evaluated(step, &figures);
        Ok(())
    }

    /// Evaluates at the user's request and logs the metrics. They don't affect the run: neither the best checkpoint, nor early stopping,
    /// nor the learning rate.
    pub(super) fn evaluate_as_requested(&mut self, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<()> {
        let Some(evaluation) = &self.evaluation else { return Ok(()) };
        let prompts = evaluation.prompts.all()?.to_vec();
        let step = self.state.global_step;
        let figures = self.or_roll_back(listener, |this| this.evaluate_on(&prompts, Some(stop)))?;
        let Some(figures) = figures else { return Ok(()) };
        self.journal.log(step, self.epoch(), &figures)?;
        listener.evaluated(step, &figures);
        Ok(())
    }

    /// Evaluates without training, on the evaluation dataset or else on the run's own, and returns the metrics.
    ///
    /// # Errors
    /// If anything fails, as in a run.
    pub fn evaluate_only(mut self) -> Result<BTreeMap<String, f64>> {
        let evaluated = self.evaluation.as_ref().map(|evaluation| &evaluation.prompts);
        let prompts = evaluated.unwrap_or_else(|| self.collector.data().prompts()).all()?.to_vec();
        let figures = self.evaluate_on(&prompts, None)?.unwrap_or_default();
        self.world.barrier("the end of an evaluation")?;
        Ok(figures)
    }

    /// Evaluates without affecting training: restores the data position and the plugins' states afterwards. Only a plugin that
    /// does not export its state sees additional calls. Returns none if `stop` was set.
    fn evaluate_on(&mut self, prompts: &[Arc<Prompt>], stop: Option<&AtomicBool>) -> Result<Option<BTreeMap<String, f64>>> {
        let begun = Instant::now();
        let (position, plugin_states) = (self.collector.position(), self.plugins.snapshots()?);
        let evaluated = self.losses(prompts, stop);
        self.collector.end_evaluation(position);
        self.plugins.take_back(plugin_states);

        let Some((loss, own)) = evaluated? else { return Ok(None) };
        let loss = self.world.sum("losses of an evaluation", loss)?;
        let mut window = MetricsWindow::default();
        window.extend(own.into_metrics());
        let all = ranks::merged(&self.world, window)?;
        Ok(Some(named(all, loss, prompts.len(), begun.elapsed().as_secs_f64())))
    }

    /// Computes the loss of all prompts, normalised over all of them, regardless of the micro-batches. Returns none if `stop` was
    /// set while their completions were collected.
    fn losses(&mut self, prompts: &[Arc<Prompt>], stop: Option<&AtomicBool>) -> Result<Option<(f64, StepMetrics)>> {
        let (at, mut figures) = (self.moment(), StepMetrics::start());
        let batching = self.plan.batching.clone();
        let size = batching.sizes.eval_micro_batch;
        let used = batching.evaluated(prompts.len());
        let collected = if batching.evaluated.collects_rest { prompts.len() } else { used };
        let groups = match self.plan.evaluation.packs_into {
            Some(length) => packed(prompts, length, &batching),
            None => prompts[..collected].chunks(batching.prompts_evaluated_together()).map(<[_]>::to_vec).collect(),
        };
        let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        let mut parts = Vec::new();
        let whole = self.collector.reads_policy().then(|| self.learner.gather_policy()).transpose()?;
        let task = ProgressTask::new(Activity::Evaluating).with_total(collected as u64, ProgressUnit::Things);
        for some in groups {
            if let Some(stop) = stop
                && ranks::any(&self.world, stop.load(Ordering::Relaxed))?
            {
                return Ok(None);
            }
            let mut with = CollectionContext {
                learner: &self.learner,
                plugins: &mut self.plugins,
                journal: &mut self.journal,
                at,
                phase: Phase::Eval,
            };
            let prompts = some.len() as u64;
            let (experience, collected) = self.collector.collect(some, GENERATION, &mut with)?;
            task.add(prompts);
            figures.merge(collected);
            parts.push(experience);
        }
        // All are joined, so that statistics over rows don't depend on the size of the parts.
        let mut experience = Experience::from_parts(parts);
        let mut with = CollectionContext {
            learner: &self.learner,
            plugins: &mut self.plugins,
            journal: &mut self.journal,
            at,
            phase: Phase::Eval,
        };
        figures.merge(self.collector.prepare(&mut experience, &mut with)?);
        drop(whole);
        figures.add(self.world.once(pass_at_k::figures(&experience, self.plan.evaluation.solved.as_ref())));
        let items = if batching.evaluated.collects_rest { experience.items().min(used) } else { experience.items() };
        let experience = Arc::new(experience);
        let sizes = match self.plan.evaluation.packs_into {
            Some(_) => sizes,
            // As in TRL, all but the last are full, which matters to losses that compare rows.
            None => (0..items).step_by(size).map(|first| size.min(items - first)).collect(),
        };
        let micro_batches: Vec<MicroBatch> = MicroBatch::split_by_sizes(&experience, sizes).collect();
        let (loss, evaluated) = self.learner.evaluate(&micro_batches, &mut self.plugins, at)?;
        figures.merge(evaluated);
        Ok(Some((loss, figures)))
    }

    /// Records the metrics of an evaluation.
    ///
    /// # Errors
    /// If the configured metric is missing.
    fn follow_evaluation(&mut self, figures: &BTreeMap<String, f64>) -> Result<()> {
        // As in transformers, the evaluation before training only shows the initial state.
        let (Some(settings), true) = (self.plan.evaluation.plateau, self.state.global_step > 0) else { return Ok(()) };
        let (metric, greater) = &self.plan.evaluation.metric;
        let name = format!("eval_{metric}");
        let Some(value) = figures.get(&name) else {
            let meant = config::did_you_mean(&name, figures.keys().map(String::as_str));
            let detail = format!("reduce_lr_on_plateau follows metric_for_best_model, and no metric is named {name:?}{meant}");
            return Err(Error::setting("lr_scheduler_type", detail));
        };
        self.state.plateau.observe(*value, settings, *greater);
        self.learner.reduce_rates(self.state.plateau.plateaus);
        Ok(())
    }
}

/// Packs prompts as in training into sequences of this length, and groups the packs into micro-batches.
pub(super) fn packed(prompts: &[Arc<Prompt>], length: usize, batching: &Batching) -> Vec<Vec<Arc<Prompt>>> {
    let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.length()).collect();
    let rows = |packs: &[Vec<usize>]| packs.iter().flatten().map(|row| prompts[*row].clone()).collect();
    let packs = pack(&lengths, length);
    packs[..batching.evaluated(packs.len())].chunks(batching.sizes.eval_micro_batch).map(rows).collect()
}

/// Names the metrics as in transformers.
pub(super) fn named(mut figures: MetricsWindow, loss: f64, prompts: usize, seconds: f64) -> BTreeMap<String, f64> {
    figures.extend([
        Metric::mean("loss", loss, 1.0),
        Metric::mean("runtime", seconds, 1.0),
        Metric::mean("samples_per_second", prompts as f64 / seconds, 1.0),
    ]);
    figures.take().into_iter().map(|(name, value)| (format!("eval_{name}"), value)).collect()
}
