//! Report of a part of a step along with its result: metrics, times and work. Each part returns its own, and the caller merges them.

use crate::metrics::Metric;
use crate::model::{GenerationCost, PassCost};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Instant;

/// Work done in one or more steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Number of generated completion tokens, over all processes.
    pub generated: u64,
    /// Number of tokens trained on, counting a prompt once per completion, over all processes.
    pub trained: u64,
    /// Number of tokens in this process's forward and backward passes, counting each prompt once for its completions.
    pub packed: u64,
    /// Minimum cost of this process's generation.
    pub generation: GenerationCost,
    /// Minimum cost of this process's forward and backward passes.
    pub passes: PassCost,
    /// Maximum memory that a pass of this process kept for its backward pass, in bytes.
    pub activations: usize,
    /// Maximum memory of keys and values in a generation of this process, in bytes.
    pub caches: usize,
}

impl AddAssign for StepWork {
    fn add_assign(&mut self, more: Self) {
        self.generated += more.generated;
        self.trained += more.trained;
        self.packed += more.packed;
        self.generation += more.generation;
        self.passes += more.passes;
        self.activations = self.activations.max(more.activations);
        self.caches = self.caches.max(more.caches);
    }
}

/// The report of a part of a step. Its clock starts at [`StepMetrics::start`]; each lap attributes the time since the previous one.
#[derive(Debug)]
pub(super) struct StepMetrics {
    metrics: Vec<Metric>,
    seconds: BTreeMap<&'static str, f64>,
    work: StepWork,
    last: Instant,
}

impl StepMetrics {
    /// Creates an empty report whose clock starts now.
    pub(super) fn start() -> Self {
        Self { metrics: Vec::new(), seconds: BTreeMap::new(), work: StepWork::default(), last: Instant::now() }
    }

    /// Adds metrics.
    pub(super) fn add(&mut self, metrics: impl IntoIterator<Item = Metric>) {
        self.metrics.extend(metrics);
    }

    /// Attributes the time since the last lap to `part`.
    pub(super) fn lap(&mut self, part: &'static str) {
        let now = Instant::now();
        *self.seconds.entry(part).or_default() += (now - self.last).as_secs_f64();
        self.last = now;
    }

    /// Adds finished work.
    pub(super) fn add_work(&mut self, work: StepWork) {
        self.work += work;
    }

    /// Merges the report of a part that has just ended.
    pub(super) fn merge(&mut self, part: Self) {
        self.metrics.extend(part.metrics);
        for (name, seconds) in part.seconds {
            *self.seconds.entry(name).or_default() += seconds;
        }
        self.work += part.work;
        self.last = part.last;
    }

    /// Returns the weighted mean of a metric's parts, if there are any.
    pub(super) fn mean_of(&self, name: &str) -> Option<f64> {
        let parts = self.metrics.iter().filter(|metric| metric.name == name);
        let (sum, weight) = parts.fold((0.0, 0.0), |(sum, weight), part| (sum + part.value * part.weight, weight + part.weight));
        (weight > 0.0).then(|| sum / weight)
    }

    /// Returns the work.
    pub(super) fn work(&self) -> StepWork {
        self.work
    }

    /// Returns the metrics.
    pub(super) fn into_metrics(self) -> Vec<Metric> {
        self.metrics
    }
}

/// Turns the times of steps into metrics.
#[derive(Debug, Default)]
pub(super) struct StepClock {
    /// Parts that any step had so far.
    parts: BTreeSet<&'static str>,
}

impl StepClock {
    /// Returns the time of a step in seconds: `step_time`, and the `time/<part>` that add up to it. Also returns the tokens per second of
    /// each of `processes` processes: `perf/throughput` (verl's name) for training and `perf/rollout_throughput` for generation. A part
    /// that only earlier steps had is reported as zero, so that means over several steps, only some of which generate, add up to the mean
    /// step.
    pub(super) fn figures(&mut self, step: &StepMetrics, processes: usize) -> Vec<Metric> {
        self.parts.extend(step.seconds.keys());
        let seconds = |part: &str| step.seconds.get(part).copied().unwrap_or(0.0);
        let whole: f64 = step.seconds.values().sum();
        let parts = self.parts.iter().map(|part| Metric::mean(format!("time/{part}"), seconds(part), 1.0));
        // Weighted by time, a rate's mean over several steps is that of all their tokens.
        let rate = |name: &str, tokens: u64, seconds: f64| {
            Metric::mean(name, tokens as f64 / seconds.max(f64::MIN_POSITIVE) / processes as f64, seconds)
        };
        let StepWork { trained, generated, .. } = step.work;
        let rates = [("perf/throughput", trained, whole), ("perf/rollout_throughput", generated, seconds("rollout"))];
        let rates = rates.into_iter().filter(|(_, tokens, _)| *tokens > 0).map(|(name, tokens, time)| rate(name, tokens, time));
        std::iter::once(Metric::mean("step_time", whole, 1.0)).chain(parts).chain(rates).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsWindow;

    #[test]
    fn parts_add_up_to_the_mean_step_where_only_some_steps_have_them() {
        let (mut clock, mut window) = (StepClock::default(), MetricsWindow::default());
        let (mut tokens, mut seconds) = (0.0, 0.0);
        for step in 0..6u64 {
            let mut figures = StepMetrics::start();
            if step % 3 == 0 {
                let mut part = StepMetrics::start();
                std::thread::sleep(std::time::Duration::from_millis(2));
                part.lap("rollout");
                part.add_work(StepWork { generated: 10 * (step + 1), ..StepWork::default() });
                (tokens, seconds) = (tokens + part.work.generated as f64, seconds + part.seconds["rollout"]);
                figures.merge(part);
            }
            figures.lap("forward");
            figures.add_work(StepWork { trained: 7, ..StepWork::default() });
            window.extend(clock.figures(&figures, 1));
        }
        let figures = window.take();
        let parts: f64 = figures.iter().filter(|(name, _)| name.starts_with("time/")).map(|(_, v)| v).sum();
        assert!((parts / figures["step_time"] - 1.0).abs() < 1e-9, "{figures:?}");
        assert!((figures["time/rollout"] - seconds / 6.0).abs() < 1e-12, "{figures:?}");
        assert!((figures["perf/rollout_throughput"] / (tokens / seconds) - 1.0).abs() < 1e-9, "{figures:?}");
        assert!((figures["perf/throughput"] * figures["step_time"] / 7.0 - 1.0).abs() < 1e-9, "{figures:?}");
    }
}
