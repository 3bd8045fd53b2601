//! The part of a run's metrics that signs use: each metric's first and newest steps.

use super::DiagnosisSettings;
use crate::run::{MetricsRow, RowKind};
use std::collections::{BTreeMap, VecDeque};

/// Metrics that signs use; those of rewards are added for each reward of the run.
const METRICS: [&str; 20] = [
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "objective/scores",
    "objective/kl",
    "kl",
    "entropy",
    "policy/entropy_avg",
    "policy/clipfrac_avg",
    "clip_ratio/region_mean",
    "ppo_clip_ratio",
    "completions/mean_length",
    "completions/clipped_ratio",
    "completions/mean_terminated_length",
    "loss",
    "logps/chosen",
    "grad_norm",
    "learning_rate",
    "rewards/accuracies",
    "mean_token_accuracy",
];

/// Returns the names of the metrics that signs use, other than those of rewards.
pub fn metrics_read() -> impl Iterator<Item = &'static str> {
    METRICS.into_iter()
}

/// Number of steps that the newest values must cover, and minimum number of logged rows among them.
pub(super) const STEPS: u64 = 15;
const ROWS: usize = 4;
/// Maximum number of newest rows in memory.
const MOST_ROWS: usize = 16;

/// A value and the number of steps that it averages, which end with `step`.
#[derive(Clone, Copy, Debug)]
struct HistoryPoint {
    value: f64,
    step: u64,
    steps: u64,
}

/// The history of one metric.
#[derive(Clone, Debug, Default)]
struct MetricHistory {
    first: Option<f64>,
    /// Points of the first half window.
    early: Vec<HistoryPoint>,
    newest: VecDeque<HistoryPoint>,
    least: f64,
    greatest: f64,
}

/// The level of a metric over several steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetricLevel {
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
    /// Means of the first and the second half.
    pub halves: [f64; 2],
}

impl MetricLevel {
    fn from_points(points: &[HistoryPoint]) -> Self {
        let mean = |points: &[HistoryPoint]| {
            let steps: u64 = points.iter().map(|p| p.steps).sum();
            points.iter().map(|p| p.value * p.steps as f64).sum::<f64>() / steps.max(1) as f64
        };
        let (all, n) = (mean(points), points.len() as f64);
        let squares: f64 = points.iter().map(|p| (p.value - all).powi(2)).sum();
        let (before, after) = points.split_at(points.len() / 2);
        Self { mean: all, error: (squares / (n - 1.0).max(1.0) / n.max(1.0)).sqrt(), halves: [mean(before), mean(after)] }
    }
}

/// The first and the newest steps of each metric.
#[derive(Clone, Debug, Default)]
pub(super) struct DiagnosisHistory {
    series: BTreeMap<String, MetricHistory>,
    last_step: u64,
}

impl DiagnosisHistory {
    /// Adds a row. Returns whether it has a metric that signs use, as training rows do.
    pub(super) fn add(&mut self, row: &MetricsRow, settings: &DiagnosisSettings) -> bool {
        if row.kind != RowKind::Train {
            return false;
        }
        let step = row.step;
        let known = |name: &str| METRICS.contains(&name) || settings.has_reward_metric(name);
        let values = row.values.iter().filter(|(name, _)| known(name));
        let values: Vec<(&String, f64)> = values.filter_map(|(name, value)| Some((name, (*value)?))).collect();
        if values.is_empty() {
            return false;
        }
        for (name, value) in values {
            self.series.entry(name.clone()).or_default().add(step, value);
        }
        self.last_step = step;
        true
    }

    /// Returns a metric's first value.
    pub(super) fn first(&self, name: &str) -> Option<f64> {
        self.series.get(name)?.first
    }

    /// Returns a metric's minimum and maximum.
    pub(super) fn extremes(&self, name: &str) -> Option<(f64, f64)> {
        self.series.get(name).map(|s| (s.least, s.greatest))
    }

    /// Returns a metric's level over the first steps, if they don't overlap with the newest.
    pub(super) fn early(&self, name: &str) -> Option<MetricLevel> {
        let series = self.series.get(name)?;
        let end = series.early.last()?.step;
        let begin = series.window()?.first()?.step;
        (begin > end).then(|| MetricLevel::from_points(&series.early))
    }

    /// Returns a metric's level over the newest steps, if there are enough and it is still logged.
    pub(super) fn newest(&self, name: &str) -> Option<MetricLevel> {
        let window = self.series.get(name)?.window()?;
        let age = self.last_step.saturating_sub(window.last()?.step);
        (age <= STEPS).then(|| MetricLevel::from_points(&window))
    }

    /// Returns the first of these metrics that has a level over the newest steps, with its name.
    pub(super) fn newest_of<'a>(&self, names: &[&'a str]) -> Option<(&'a str, MetricLevel)> {
        names.iter().find_map(|name| Some((*name, self.newest(name)?)))
    }

    /// Returns the step of the last row.
    pub(super) fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Returns whether any metric has enough values.
    pub(super) fn has_enough(&self) -> bool {
        self.series.values().any(|series| series.window().is_some())
    }
}

impl MetricHistory {
    fn add(&mut self, step: u64, value: f64) {
        let before = self.newest.back().map_or(0, |point| point.step);
        let point = HistoryPoint { value, step, steps: step.saturating_sub(before).max(1) };
        let first = *self.first.get_or_insert(value);
        if self.newest.is_empty() {
            (self.least, self.greatest) = (first, first);
        }
        (self.least, self.greatest) = (self.least.min(point.value), self.greatest.max(point.value));
        let covered: u64 = self.early.iter().map(|p| p.steps).sum();
        if self.early.len() < ROWS || covered < STEPS / 2 && self.early.len() < MOST_ROWS {
            self.early.push(point);
        }
        self.newest.push_back(point);
        if self.newest.len() > MOST_ROWS {
            self.newest.pop_front();
        }
    }

    /// Returns the smallest sufficient number of newest points.
    fn window(&self) -> Option<Vec<HistoryPoint>> {
        let (mut rows, mut steps) = (0, 0);
        for point in self.newest.iter().rev() {
            (rows, steps) = (rows + 1, steps + point.steps);
            if rows >= ROWS && steps >= STEPS {
                return Some(self.newest.range(self.newest.len() - rows..).copied().collect());
            }
        }
        None
    }
}
