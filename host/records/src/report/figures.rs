//! Reads `metrics.jsonl`: each metric as a series over the steps.

use super::Error;
use crate::run::{MetricsRow, PluginVersion, RowKind, RunFiles, each_metrics_row};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::path::Path;

/// Most points of a series on the page: more than a screen has columns.
pub(super) const MOST_POINTS: usize = 2000;

/// Most points of all series on the page together.
const MOST_ON_PAGE: usize = 1_000_000;

/// Most metrics, and the most places for their values in all steps together.
const MOST_SERIES: usize = 4096;
const MOST_PLACES: usize = 32 << 20;

/// Most sets of versions.
const MOST_SETS: usize = 10_000;

/// Metrics for which a step has room at least: what is beside them takes memory too.
const LEAST_SERIES: usize = 16;

/// Returns the part of a step's time that this metric measures. Waiting for a checkpoint is not part of a step's time.
fn part_of(name: &str) -> Option<&str> {
    name.strip_prefix("time/").filter(|part| *part != "checkpoint")
}

/// A metric with one value per step. Steps where it is missing or not finite are gaps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Series {
    pub name: String,
    #[serde(rename = "y")]
    pub values: Vec<Option<f64>>,
    /// Minimum and maximum of the steps behind each point, if a point stands for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lo: Option<Vec<Option<f64>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hi: Option<Vec<Option<f64>>>,
}

/// Which rows of metrics.jsonl a step has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub train: bool,
    pub evaluation: bool,
}

impl Rows {
    fn has(&mut self, kind: RowKind) -> &mut bool {
        match kind {
            RowKind::Train => &mut self.train,
            RowKind::Evaluation => &mut self.evaluation,
        }
    }

    fn or(self, other: Self) -> Self {
        Self { train: self.train || other.train, evaluation: self.evaluation || other.evaluation }
    }
}

/// All metrics of a run. A step's training row and its evaluation's row are one point.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub steps: Vec<u64>,
    /// What each step has, so that a step without an evaluation is not a gap in the evaluations, or the other way round.
    pub rows: Vec<Rows>,
    pub series: Vec<Series>,
    /// The plugins' versions that each step's rows name: an index into `sets`.
    versions: Vec<Option<usize>>,
    sets: Vec<BTreeMap<String, PluginVersion>>,
    /// Logged steps behind each point.
    pub per_point: usize,
    places: HashMap<String, usize>,
}

/// What is left out for want of room.
#[derive(Default)]
struct LeftOut {
    lines: u64,
    values: u64,
}

/// A series in the table.
pub(super) struct Summary {
    pub first: (u64, f64),
    pub last: (u64, f64),
    pub least: f64,
    pub greatest: f64,
}

impl Figures {
    /// Reads the metrics of a run; one without metrics.jsonl has none. What can't be read is reported in `notes`.
    pub(super) fn read(run: &Path, notes: &mut Vec<String>) -> Result<Self, Error> {
        let mut this = Self { per_point: 1, ..Self::default() };
        let mut left_out = LeftOut::default();
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
    fn add(&mut self, row: &MetricsRow, places: &mut HashMap<u64, usize>, left_out: &mut LeftOut) {
        let point = match places.get(&row.step) {
            Some(&point) => point,
            None if (places.len() + 1).saturating_mul(self.series.len().max(LEAST_SERIES)) > MOST_PLACES => {
                left_out.lines += 1;
                return;
            }
            None => {
                places.insert(row.step, self.steps.len());
                self.steps.push(row.step);
                self.rows.push(Rows::default());
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

    /// Returns the index of a set of versions; none if it is empty.
    fn set_of(&mut self, versions: &BTreeMap<String, PluginVersion>) -> Option<usize> {
        if versions.is_empty() {
            return None;
        }
        // Rows usually have the versions of the row before.
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

    /// Sets a value; returns whether there is room for its metric.
    fn set(&mut self, name: &str, row: usize, value: Option<f64>) -> bool {
        let place = match self.places.get(name) {
            Some(&place) => place,
            None if self.series.len() == MOST_SERIES || (self.series.len() + 1) * self.steps.len() > MOST_PLACES => return false,
            None => {
                self.places.insert(name.to_owned(), self.series.len());
                let values = vec![None; self.steps.len()];
                self.series.push(Series { name: name.to_owned(), values, lo: None, hi: None });
                self.series.len() - 1
            }
        };
        self.series[place].values[row] = value;
        true
    }

    /// Puts the rows into the order of their steps.
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

    /// Returns name and index of each part of a step's time.
    pub(super) fn parts_of_step(&self) -> Vec<(&str, usize)> {
        self.series.iter().enumerate().filter_map(|(place, s)| Some((part_of(&s.name)?, place))).collect()
    }

    /// Returns the first, last and extreme values of a part of a series.
    pub(super) fn summary(&self, series: &Series, part: Range<usize>) -> Option<Summary> {
        let points = self.steps[part.clone()].iter().zip(&series.values[part]);
        let mut points = points.filter_map(|(&step, v)| v.map(|v| (step, v)));
        let first = points.next()?;
        let start = Summary { first, last: first, least: first.1, greatest: first.1 };
        Some(points.fold(start, |s, point| Summary {
            last: point,
            least: s.least.min(point.1),
            greatest: s.greatest.max(point.1),
            ..s
        }))
    }

    /// Reduces series to about [`MOST_POINTS`] points, or fewer where there are many series: means of consecutive steps, with their
    /// extremes. No mean crosses the points at `breaks`.
    pub(super) fn thinned(&self, breaks: &[usize]) -> Self {
        let points = MOST_POINTS.min(MOST_ON_PAGE / self.series.len().max(1));
        let per_point = self.steps.len().div_ceil(points).max(1);
        if per_point == 1 {
            return self.clone();
        }
        let ends = breaks.iter().copied().chain([self.steps.len()]);
        let mut begin = 0;
        let mut parts: Vec<Range<usize>> = Vec::new();
        for end in ends {
            parts.extend((begin..end).step_by(per_point).map(|from| from..(from + per_point).min(end)));
            begin = begin.max(end);
        }
        let reduce = |values: &[Option<f64>], f: fn(&[f64]) -> f64| -> Vec<Option<f64>> {
            let bucket = |part: &Range<usize>| values[part.clone()].iter().flatten().copied().collect::<Vec<f64>>();
            parts.iter().map(bucket).map(|part| (!part.is_empty()).then(|| rounded(f(&part)))).collect()
        };
        let series = self.series.iter().map(|s| Series {
            name: s.name.clone(),
            values: reduce(&s.values, |part| part.iter().sum::<f64>() / part.len() as f64),
            lo: Some(reduce(&s.values, |part| part.iter().copied().fold(f64::INFINITY, f64::min))),
            hi: Some(reduce(&s.values, |part| part.iter().copied().fold(f64::NEG_INFINITY, f64::max))),
        });
        let all = |part: &Range<usize>| self.rows[part.clone()].iter().fold(Rows::default(), |all, rows| all.or(*rows));
        Self {
            steps: parts.iter().map(|part| self.steps[part.end - 1]).collect(),
            rows: parts.iter().map(all).collect(),
            versions: parts.iter().map(|part| self.versions[part.end - 1]).collect(),
            sets: self.sets.clone(),
            series: series.collect(),
            per_point,
            places: self.places.clone(),
        }
    }
}

/// Rounds to the digits that a chart can show; a mean's other digits would be half of the page.
fn rounded(v: f64) -> f64 {
    format!("{v:.6e}").parse().unwrap_or(v)
}
