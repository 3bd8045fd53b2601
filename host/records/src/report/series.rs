//! Reads `metrics.jsonl`: each metric as a series over the steps.

use super::Error;
use crate::run::{MetricsRow, PluginVersion, RowKind, RunFiles, each_metrics_row, metric_name};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::path::Path;

/// Maximum number of metrics, and of values of all metrics in all steps together.
const MOST_SERIES: usize = 4096;
const MOST_PLACES: usize = 32 << 20;

/// Maximum number of distinct sets of versions.
const MOST_SETS: usize = 10_000;

/// Minimum number of metrics counted for each step, since a step takes memory besides its values.
const LEAST_SERIES: usize = 16;

/// Returns the part of a step's time that this metric measures. Waiting for a checkpoint is not part of a step's time.
fn part_of(name: &str) -> Option<&str> {
    name.strip_prefix("time/").filter(|part| *part != "checkpoint")
}

/// A metric with one value per step. Steps where it is missing or not finite are gaps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MetricSeries {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

impl MetricSeries {
    /// Returns the metric's name in curves and tables.
    pub(super) fn shown(&self) -> String {
        metric_name(&self.name)
    }
}

/// The kinds of rows that a step has in metrics.jsonl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StepRowKinds {
    train: bool,
    evaluation: bool,
}

impl StepRowKinds {
    fn has(&mut self, kind: RowKind) -> &mut bool {
        match kind {
            RowKind::Train => &mut self.train,
            RowKind::Evaluation => &mut self.evaluation,
        }
    }
}

/// All metrics of a run. A step's training row and its evaluation's row are one point.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportMetrics {
    pub steps: Vec<u64>,
    /// Kinds of rows of each step, since a resumed run may write a row of the same kind again.
    rows: Vec<StepRowKinds>,
    pub series: Vec<MetricSeries>,
    /// The plugins' versions named by each step's rows, as an index into `sets`.
    versions: Vec<Option<usize>>,
    sets: Vec<BTreeMap<String, PluginVersion>>,
    places: HashMap<String, usize>,
}

/// Numbers of lines and values omitted for lack of space.
#[derive(Default)]
struct OmittedCounts {
    lines: u64,
    values: u64,
}

/// The summary of a series for the table.
pub(super) struct SeriesSummary {
    pub first: (u64, f64),
    pub last: (u64, f64),
    pub least: f64,
    pub greatest: f64,
}

impl ReportMetrics {
    /// Reads the metrics of a run; without metrics.jsonl, there are none. Anything that can't be read is reported in `notes`.
    pub(super) fn read(run: &Path, notes: &mut Vec<String>) -> Result<Self, Error> {
        let mut this = Self::default();
        let mut left_out = OmittedCounts::default();
        let mut places = HashMap::new();
        match each_metrics_row(run, |row| this.add(&row, &mut places, &mut left_out)) {
            Ok(unread) => notes.extend(unread),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Read { path: RunFiles(run).metrics(), source }),
        }
        this.sort();
        let file = RunFiles::METRICS;
        if left_out.values > 0 {
            notes.push(format!(
                "{file}: only the first {MOST_SERIES} metrics are shown; {} values of others are not",
                left_out.values
            ));
        }
        if left_out.lines > 0 {
            notes.push(format!("{file}: it has too many metrics and steps; its last {} lines are not shown", left_out.lines));
        }
        Ok(this)
    }

    /// Adds a row; `places` has the point of each step.
    fn add(&mut self, row: &MetricsRow, places: &mut HashMap<u64, usize>, left_out: &mut OmittedCounts) {
        let point = match places.get(&row.step) {
            Some(&point) => point,
            None if (places.len() + 1).saturating_mul(self.series.len().max(LEAST_SERIES)) > MOST_PLACES => {
                left_out.lines += 1;
                return;
            }
            None => {
                places.insert(row.step, self.steps.len());
                self.steps.push(row.step);
                self.rows.push(StepRowKinds::default());
                self.versions.push(None);
                self.series.iter_mut().for_each(|s| s.values.push(None));
                self.steps.len() - 1
            }
        };
        if std::mem::replace(self.rows[point].has(row.kind), true) {
            // A resumed run may write a step again; the newer row counts.
            let again = self.series.iter_mut().filter(|s| RowKind::from_metric(&s.name) == Some(row.kind));
            again.for_each(|s| s.values[point] = None);
        }
        self.versions[point] = self.set_of(&row.versions).or(self.versions[point]);
        for (name, value) in &row.values {
            if !self.set(name, point, *value) {
                left_out.values += 1;
            }
        }
    }

    /// Returns the index of a set of versions; `None` for an empty set.
    fn set_of(&mut self, versions: &BTreeMap<String, PluginVersion>) -> Option<usize> {
        if versions.is_empty() {
            return None;
        }
        // Most rows have the versions of the previous row.
        let known = self.sets.iter().rposition(|set| set == versions);
        known.or_else(|| {
            (self.sets.len() < MOST_SETS).then(|| {
                self.sets.push(versions.clone());
                self.sets.len() - 1
            })
        })
    }

    /// Returns the plugins' versions at each step, where its rows name them.
    pub(super) fn versions(&self) -> impl Iterator<Item = Option<&BTreeMap<String, PluginVersion>>> {
        self.versions.iter().map(|set| set.map(|set| &self.sets[set]))
    }

    /// Sets a value. Returns whether there is space for its metric.
    fn set(&mut self, name: &str, row: usize, value: Option<f64>) -> bool {
        let place = match self.places.get(name) {
            Some(&place) => place,
            None if self.series.len() == MOST_SERIES || (self.series.len() + 1) * self.steps.len() > MOST_PLACES => return false,
            None => {
                self.places.insert(name.to_owned(), self.series.len());
                let values = vec![None; self.steps.len()];
                self.series.push(MetricSeries { name: name.to_owned(), values });
                self.series.len() - 1
            }
        };
        self.series[place].values[row] = value;
        true
    }

    /// Sorts the rows by step.
    fn sort(&mut self) {
        if self.steps.is_sorted() {
            return;
        }
        let mut order: Vec<usize> = (0..self.steps.len()).collect();
        order.sort_unstable_by_key(|&row| self.steps[row]);
        self.steps.sort_unstable();
        self.rows = order.iter().map(|&row| self.rows[row]).collect();
        self.versions = order.iter().map(|&row| self.versions[row]).collect();
        for series in &mut self.series {
            series.values = order.iter().map(|&row| series.values[row]).collect();
        }
    }

    /// Returns the index of a series that has at least one value.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied().filter(|&p| self.series[p].values.iter().any(Option::is_some))
    }

    /// Returns a metric's values, empty if it was not logged.
    pub(super) fn values(&self, name: &str) -> &[Option<f64>] {
        self.places.get(name).map_or(&[], |&place| &self.series[place].values)
    }

    /// Returns the name and index of each part of a step's time.
    pub(super) fn parts_of_step(&self) -> Vec<(&str, usize)> {
        self.series.iter().enumerate().filter_map(|(place, s)| Some((part_of(&s.name)?, place))).collect()
    }

    /// Returns the first, last and extreme values of a part of a series.
    pub(super) fn summary(&self, series: &MetricSeries, part: Range<usize>) -> Option<SeriesSummary> {
        let points = self.steps[part.clone()].iter().zip(&series.values[part]);
        let mut points = points.filter_map(|(&step, v)| v.map(|v| (step, v)));
        let first = points.next()?;
        let start = SeriesSummary { first, last: first, least: first.1, greatest: first.1 };
        Some(points.fold(start, |s, point| SeriesSummary {
            last: point,
            least: s.least.min(point.1),
            greatest: s.greatest.max(point.1),
            ..s
        }))
    }
}
