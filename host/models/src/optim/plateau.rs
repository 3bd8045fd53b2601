//! Detects when evaluations stop improving.

use crate::config::{MetricDirection, PlateauArgs, ThresholdMode};
use serde::{Deserialize, Serialize};

/// State of plateau detection, counted like torch's `ReduceLROnPlateau`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct PlateauDetector {
    best: Option<f64>,
    /// Number of evaluations without improvement.
    bad: u32,
    /// Number of evaluations left that don't count.
    cooldown: u32,
    /// Number of times that evaluations have stopped improving.
    pub plateaus: u32,
}

impl PlateauDetector {
    /// Returns the state for another metric. Keeps the number of plateaus, so learning rates stay as low as they are.
    pub fn for_new_metric(self) -> Self {
        Self { plateaus: self.plateaus, ..Self::default() }
    }

    /// Records a value of the metric. `greater` is whether higher is better, unless the settings define that.
    pub fn observe(&mut self, value: f64, s: PlateauArgs, greater: bool) {
        let greater = s.mode.map_or(greater, |mode| mode == MetricDirection::Max);
        let sign = if greater { 1.0 } else { -1.0 };
        let improves = |best: f64| {
            let enough = match s.threshold_mode {
                ThresholdMode::Rel => best * (1.0 + sign * s.threshold),
                ThresholdMode::Abs => best + sign * s.threshold,
            };
            if greater { value > enough } else { value < enough }
        };
        if self.best.is_none_or(improves) && !value.is_nan() {
            (self.best, self.bad) = (Some(value), 0);
        } else {
            self.bad = self.bad.saturating_add(1);
        }
        if self.cooldown > 0 {
            (self.cooldown, self.bad) = (self.cooldown - 1, 0);
        }
        if self.bad > s.patience {
            (self.plateaus, self.cooldown, self.bad) = (self.plateaus.saturating_add(1), s.cooldown, 0);
        }
    }
}
