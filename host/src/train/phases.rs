//! Where a step's time goes.

use super::work::Work;
use crate::metrics::Metric;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Instant;

/// Attributes the time between two laps to the part of the work that the second one names.
pub(super) struct Phases {
    begun: Instant,
    last: Cell<Instant>,
    seconds: RefCell<BTreeMap<&'static str, f64>>,
    /// What the present step has done.
    pub work: Work,
}

impl Phases {
    /// A clock that starts now.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, last: Cell::new(now), seconds: RefCell::default(), work: Work::default() }
    }

    /// Begins a step. A part that earlier steps had stays with no time, so that the means over
    /// several steps, of which only some generate, add up to the mean step.
    pub(super) fn begin(&mut self) {
        let seconds = RefCell::new(self.seconds.take().into_keys().map(|part| (part, 0.0)).collect());
        *self = Self { seconds, ..Self::new() };
    }

    /// What was done since the last lap was `part`.
    pub(super) fn lap(&self, part: &'static str) {
        let now = Instant::now();
        *self.seconds.borrow_mut().entry(part).or_default() += (now - self.last.replace(now)).as_secs_f64();
    }

    /// The step until its last lap: `step_time` and, adding up to it, `time/<part>`, in seconds; and
    /// tokens a second of each of so many `processes`, by verl's name `perf/throughput` for those
    /// trained on, and `perf/rollout_throughput` for those generated.
    pub(super) fn figures(&self, processes: usize) -> Vec<Metric> {
        let whole = (self.last.get() - self.begun).as_secs_f64();
        let seconds = self.seconds.borrow();
        let parts = seconds.iter().map(|(part, seconds)| Metric::mean(format!("time/{part}"), *seconds, 1.0));
        // Weighted by its time, a rate's mean over several steps is that of all their tokens.
        let rate = |name: &str, tokens: u64, seconds: f64| {
            Metric::mean(name, tokens as f64 / seconds.max(f64::MIN_POSITIVE) / processes as f64, seconds)
        };
        let rollout = seconds.get("rollout").copied().unwrap_or(0.0);
        let rates = [("perf/throughput", self.work.trained, whole), ("perf/rollout_throughput", self.work.generated, rollout)];
        let rates = rates.into_iter().filter(|(_, tokens, _)| *tokens > 0).map(|(name, tokens, time)| rate(name, tokens, time));
        std::iter::once(Metric::mean("step_time", whole, 1.0)).chain(parts).chain(rates).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Window;

    #[test]
    fn parts_add_up_to_the_mean_step_where_only_some_steps_have_them() {
        let (mut phases, mut window) = (Phases::new(), Window::default());
        let (mut tokens, mut seconds) = (0.0, 0.0);
        for step in 0..6u64 {
            phases.begin();
            if step % 3 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(2));
                phases.lap("rollout");
                phases.work.generated = 10 * (step + 1);
                (tokens, seconds) = (tokens + phases.work.generated as f64, seconds + phases.seconds.borrow()["rollout"]);
            }
            phases.lap("forward");
            phases.work.trained = 7;
            window.extend(phases.figures(1));
        }
        let figures = window.take();
        let parts: f64 = figures.iter().filter(|(name, _)| name.starts_with("time/")).map(|(_, v)| v).sum();
        assert!((parts / figures["step_time"] - 1.0).abs() < 1e-9, "{figures:?}");
        assert!((figures["time/rollout"] - seconds / 6.0).abs() < 1e-12, "{figures:?}");
        assert!((figures["perf/rollout_throughput"] / (tokens / seconds) - 1.0).abs() < 1e-9, "{figures:?}");
        assert!((figures["perf/throughput"] * figures["step_time"] / 7.0 - 1.0).abs() < 1e-9, "{figures:?}");
    }
}
