//! Where a step's time goes.

use crate::metrics::Metric;
use std::collections::BTreeMap;
use std::time::Instant;

/// Attributes the time between two laps to the part of the work that the second one names.
pub(super) struct Phases {
    begun: Instant,
    last: Instant,
    seconds: BTreeMap<&'static str, f64>,
}

impl Phases {
    /// A clock that starts now.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, seconds: BTreeMap::new() }
    }

    /// What was done since the last lap was `part`.
    pub(super) fn lap(&mut self, part: &'static str) {
        let now = Instant::now();
        *self.seconds.entry(part).or_default() += (now - self.last).as_secs_f64();
        self.last = now;
    }

    /// `step_time` and `time/<part>` in seconds.
    pub(super) fn take(&mut self) -> Vec<Metric> {
        let whole = Metric::mean("step_time", self.begun.elapsed().as_secs_f64(), 1.0);
        let parts = std::mem::take(&mut self.seconds)
            .into_iter()
            .map(|(part, seconds)| Metric::mean(format!("time/{part}"), seconds, 1.0));
        std::iter::once(whole).chain(parts).collect()
    }
}
