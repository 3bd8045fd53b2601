//! Takes one optimizer step, from top to bottom.

use super::collector::CollectionContext;
use super::phase::Phase;
use super::step_metrics::StepMetrics;
use super::trainer::Trainer;
use super::{Error, Result, ranks};
use crate::learner::SAMPLING_DIFFERENCE;
use crate::metrics::{Metric, MetricReduction, MetricsWindow};
use crate::ops;

/// Mean difference of log-probabilities that no precision of a server explains.
const MOST_SAMPLING_DIFFERENCE: f64 = 0.5;

impl Trainer {
    /// Takes the step's micro-batches, generating if none are left, accumulates the gradient of their loss, and updates the
    /// weights once. This is the only place where `global_step` is incremented.
    pub(super) fn step(&mut self) -> Result<StepMetrics> {
        let mut figures = StepMetrics::start();
        let at = self.moment();

        let mut with = CollectionContext {
            learner: &self.learner,
            plugins: &mut self.plugins,
            journal: &mut self.journal,
            at,
            phase: Phase::Train,
        };
        let reads_policy = self.collector.prepare_waiting(self.plan.batching.accumulation, &mut with)?;
        let whole = reads_policy.then(|| self.learner.gather_policy()).transpose()?;
        let (micro_batches, collected) = self.collector.next(self.plan.batching.accumulation, &mut with)?;
        figures.merge(collected);
        drop(whole);

        let prompt_pass = self.collector.take_prompt_pass(&micro_batches, at);
        let (loss, learned) = self.learner.learn(&micro_batches, prompt_pass, &mut self.plugins, at)?;
        self.check_servers(&learned)?;
        figures.merge(learned);

        let (updates, updated) = self.learner.update(at.step + 1)?;
        figures.merge(updated);
        self.state.global_step += 1;
        self.state.moved |= updates.moves_policy();
        if self.collector.syncs_reference_at(self.state.global_step) {
            let _whole = self.learner.gather_policy()?;
            figures.merge(self.collector.sync_reference(self.learner.policy())?);
        }
        figures.merge(self.learner.update_teacher(self.state.global_step)?);

        figures.add(self.world.once(std::iter::once(Metric::mean("loss", loss, 1.0)).chain(updates.metrics())));
        let times = self.clock.figures(&figures, self.world.size());
        figures.add(self.world.once(times));
        let of_device =
            ops::device::peak_memory(self.learner.policy().device()).map(|bytes| ("perf/peak_device_memory_mb", bytes));
        let peaks = [("perf/peak_memory_mb", ops::peak_memory())].into_iter().chain(of_device);
        figures.add(peaks.map(|(name, bytes)| Metric::new(name, bytes as f64 / 1e6, MetricReduction::Max)));
        Ok(figures)
    }

    /// Refuses to learn from tokens of inference servers that their own log-probabilities don't describe: other tokens, or log-probabilities
    /// of another distribution than the one that was sampled from.
    fn check_servers(&self, learned: &StepMetrics) -> Result<()> {
        let found = learned.mean_of(SAMPLING_DIFFERENCE).filter(|_| self.plan.rollout.compares_with_servers());
        match found.filter(|found| *found > MOST_SAMPLING_DIFFERENCE) {
            None => Ok(()),
            Some(found) => Err(Error::RolloutServers(format!(
                "the log-probabilities of the tokens that rollout servers sampled differ from the policy's by {found:.2} on average, with the \
                 same weights: they are those of other tokens or of another temperature (vLLM needs --logprobs-mode processed_logprobs)"
            ))),
        }
    }

    /// Merges the metrics of a finished step over all ranks, adds them to the window, and returns them.
    pub(super) fn gather(&mut self, figures: StepMetrics) -> Result<MetricsWindow> {
        let mut own = MetricsWindow::default();
        own.extend(figures.into_metrics());
        own.extend(self.plugins.swap_figures());
        let all = ranks::merged(&self.world, own)?;
        self.journal.add(&all)?;
        Ok(all)
    }

    /// Passes the metrics of the last step to the plugins that observe steps.
    pub(super) fn observe(&mut self, all: &MetricsWindow) -> Result<()> {
        if !self.plugins.observe_steps() {
            return Ok(());
        }
        let reduced: Vec<(String, f64)> = all.clone().take().into_iter().collect();
        self.plugins.observe(self.state.global_step, &reduced)
    }
}
