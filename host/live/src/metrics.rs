//! The metrics of a run in columns, and samples of them for curves.

use super::tail::{FileTail, TailEvent};
use crate::run::{MetricsRow, PluginVersion, RowKind, metric_name};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

/// Maximum length of a line that is read, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// Maximum number of metrics, and of values in all rows together, including missing ones.
const MOST_COLUMNS: usize = 2048;
const MOST_PLACES: usize = 24 << 20;

/// Maximum number of changes of plugins' versions in memory.
const MOST_CHANGES: usize = 10_000;

/// Metric that counts tokens.
const TOKENS: &str = "num_tokens";

/// The horizontal axis of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveAxis {
    /// Number of steps.
    Step,
    /// Working time of the run's processes, in seconds.
    Time,
    /// Number of tokens seen.
    Tokens,
}

/// Maximum valid time, in seconds: the file may be from anybody.
const LONGEST_TIME: f64 = 1e12;

/// Converts the rows' times, which each process of a run counts from 0, to the total working time of all processes.
#[derive(Clone, Copy, Debug, Default)]
struct RunClock {
    /// Total of the earlier processes, in seconds.
    before: f64,
    /// Time of the last row.
    last: f64,
    /// Last step of a training row, and of an evaluation row.
    steps: [Option<u64>; 2],
}

impl RunClock {
    /// Returns the working time at the next row of the file. A new process begins where time decreases or steps are repeated; an evaluation
    /// of the same step may have been requested twice.
    fn read(&mut self, row: &MetricsRow, time: f64) -> f64 {
        if !(0.0..LONGEST_TIME).contains(&time) {
            return f64::NAN;
        }
        let (kind, least) = if row.kind == RowKind::Train { (0, row.step) } else { (1, row.step.saturating_add(1)) };
        if time < self.last || self.steps[kind].is_some_and(|last| least <= last) {
            *self = Self { before: self.before + self.last, ..Self::default() };
        }
        (self.last, self.steps[kind]) = (time, Some(row.step));
        self.before + time
    }
}

/// The metrics of a run. A step's training row and its evaluation row are merged into one.
pub struct LiveMetrics {
    tail: FileTail,
    /// Increases whenever earlier rows are removed.
    pub generation: u64,
    /// Step of each row.
    pub steps: Vec<u64>,
    times: Vec<f64>,
    clock: RunClock,
    kinds: Vec<u8>,
    columns: BTreeMap<String, Vec<f32>>,
    /// Versions that rows name, each with the index of the first row that names them.
    versions: Vec<(usize, BTreeMap<String, PluginVersion>)>,
    /// Number of rows omitted for lack of space.
    pub left_out: u64,
}

/// A query for curves.
#[derive(Clone, Copy, Debug)]
pub struct CurveQuery<'a> {
    /// Horizontal axis.
    pub axis: CurveAxis,
    /// Range of the axis.
    pub ends: (f64, f64),
    /// Approximate maximum number of points.
    pub points: usize,
    /// Steps after which rows are not comparable with earlier ones: no point combines rows from both sides.
    pub breaks: &'a [u64],
}

/// Sampled curves: points, with the minimum and maximum of the rows that each combines.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct SampledCurves {
    /// Position of each point on the axis.
    pub x: Vec<f64>,
    /// Last step of each point.
    pub steps: Vec<u64>,
    /// Working time of the run's processes until that step, in seconds.
    pub times: Vec<Option<f64>>,
    /// Kinds of rows of each point: training (1), evaluation (2), or both (3). A metric that a step did not measure leaves no gap.
    pub kinds: Vec<u8>,
    /// Values by metric name.
    pub series: BTreeMap<String, SampledSeries>,
    /// Number of rows per point.
    pub per_point: usize,
}

/// The values of a metric at the points of a curve.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct SampledSeries {
    /// Mean of each point's rows.
    pub y: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Minimum of each point's rows, if there are several.
    pub lo: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Maximum of each point's rows, if there are several.
    pub hi: Vec<Option<f64>>,
}

impl LiveMetrics {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            tail: FileTail::new(path, LONGEST_LINE),
            generation: 0,
            steps: Vec::new(),
            times: Vec::new(),
            clock: RunClock::default(),
            kinds: Vec::new(),
            versions: Vec::new(),
            columns: BTreeMap::new(),
            left_out: 0,
        }
    }

    /// Returns the names of the metrics.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.columns.keys()
    }

    /// Returns the fraction of the file that was read, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.tail.share()
    }

    /// Returns the number of bytes that were read.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.tail.place()
    }

    /// Reads new lines. Returns whether all of them were read in time.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn advance(&mut self, until: Instant) -> io::Result<bool> {
        // Taken out of `self`, so that rows can be added while reading.
        let mut tail = std::mem::replace(&mut self.tail, FileTail::new(PathBuf::new(), 0));
        let read = tail.advance(until, |piece| match piece {
            TailEvent::Restart => {
                self.truncate(0);
                self.clock = RunClock::default();
            }
            TailEvent::Line(_, text) => {
                let line = serde_json::from_slice::<Map<String, Value>>(text).ok();
                line.and_then(|line| MetricsRow::from_line(&line)).into_iter().for_each(|row| self.add(&row));
            }
        });
        self.tail = tail;
        read
    }

    fn truncate(&mut self, rows: usize) {
        if rows < self.steps.len() {
            self.generation += 1;
            self.steps.truncate(rows);
            self.times.truncate(rows);
            self.kinds.truncate(rows);
            self.versions.retain(|(from, _)| *from < rows);
            self.columns.values_mut().for_each(|column| column.truncate(rows));
        }
    }

    fn add(&mut self, row: &MetricsRow) {
        // A resumed run repeats steps.
        self.truncate(self.steps.partition_point(|step| *step <= row.step));
        if self.steps.last() != Some(&row.step) {
            if (self.steps.len() + 1).saturating_mul(self.columns.len().max(16)) > MOST_PLACES {
                self.left_out += 1;
                return;
            }
            self.steps.push(row.step);
            self.times.push(f64::NAN);
            self.kinds.push(0);
            self.columns.values_mut().for_each(|column| column.push(f32::NAN));
        }
        let last = self.steps.len() - 1;
        self.kinds[last] |= if row.kind == RowKind::Train { 1 } else { 2 };
        self.name_versions(last, row);
        for (name, value) in &row.values {
            let Some(value) = *value else { continue };
            if name == "time" {
                self.times[last] = self.clock.read(row, value);
                continue;
            }
            if let Some(column) = self.columns.get_mut(name) {
                column[last] = value as f32;
                continue;
            }
            let (shown, count) = (metric_name(name), self.columns.len());
            let has_room = count < MOST_COLUMNS && (last + 1).saturating_mul(count) < MOST_PLACES;
            if has_room || self.columns.contains_key(&shown) {
                self.columns.entry(shown).or_insert_with(|| vec![f32::NAN; last + 1])[last] = value as f32;
            }
        }
    }

    /// Records the versions that a row names. They replace those named by an earlier row of the same step.
    fn name_versions(&mut self, place: usize, row: &MetricsRow) {
        if row.versions.is_empty() {
            return;
        }
        self.versions.retain(|(from, _)| *from < place);
        let is_known = self.versions.last().is_some_and(|(_, versions)| *versions == row.versions);
        if !is_known && self.versions.len() < MOST_CHANGES {
            self.versions.push((place, row.versions.clone()));
        }
    }

    /// Returns a metric's last value.
    #[must_use]
    pub fn last(&self, name: &str) -> Option<f64> {
        let column = self.columns.get(name)?;
        column.iter().rev().find(|value| value.is_finite()).map(|value| rounded(*value))
    }

    /// Returns the newest process's time at its last row, in seconds.
    #[must_use]
    pub fn seconds_of_process(&self) -> Option<f64> {
        self.seconds().map(|_| self.clock.last)
    }

    /// Returns the working time of the run's processes until the last row, in seconds.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        self.times.iter().rev().copied().find(|time| time.is_finite())
    }

    /// Returns the steps per second over the newest rows.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        const ROWS: usize = 12;
        let from = self.steps.len().saturating_sub(ROWS);
        let known: Vec<(f64, f64)> = (from..self.steps.len())
            .map(|i| (self.steps[i] as f64, self.times[i]))
            .filter(|(_, time)| time.is_finite())
            .collect();
        let (first, last) = (known.first()?, known.last()?);
        let (steps, seconds) = (last.0 - first.0, last.1 - first.1);
        if steps > 0.0 && seconds > 0.0 {
            return Some(steps / seconds);
        }
        let step_time = self.last("step_time").filter(|time| *time > 0.0)?;
        Some(1.0 / step_time)
    }

    fn axis(&self, axis: CurveAxis, row: usize) -> f64 {
        match axis {
            CurveAxis::Step => self.steps[row] as f64,
            CurveAxis::Time => self.times[row],
            CurveAxis::Tokens => self.columns.get(TOKENS).map_or(f64::NAN, |column| f64::from(column[row])),
        }
    }

    /// Returns the steps after which rows name a different version of a plugin.
    pub fn breaks(&self) -> impl Iterator<Item = u64> {
        let differs = |a: &BTreeMap<String, PluginVersion>, b: &BTreeMap<String, PluginVersion>| {
            b.iter().any(|(plugin, own)| a.get(plugin).is_some_and(|old| !old.is_same(own)))
        };
        let pairs = self.versions.windows(2).filter(move |pair| pair[1].0 > 0 && differs(&pair[0].1, &pair[1].1));
        pairs.map(|pair| self.steps[pair[1].0 - 1])
    }

    /// Samples metrics in a range of the axis. All points are means of the same number of rows.
    #[must_use]
    pub fn sample(&self, wanted: &dyn Fn(&str) -> bool, sampling: &CurveQuery<'_>) -> SampledCurves {
        let CurveQuery { axis, ends, points, breaks } = *sampling;
        let within = |row: &usize| {
            let x = self.axis(axis, *row);
            x >= ends.0 && x <= ends.1
        };
        let rows: Vec<usize> = (0..self.steps.len()).filter(within).collect();
        let per_point = rows.len().div_ceil(points.max(1)).max(1);
        let part = |row: usize| breaks.partition_point(|step| *step < self.steps[row]);
        let chunks: Vec<&[usize]> =
            rows.chunk_by(|a, b| part(*a) == part(*b)).flat_map(|stretch| stretch.chunks(per_point)).collect();
        let last: Vec<usize> = chunks.iter().map(|rows| rows[rows.len() - 1]).collect();
        let mut series = BTreeMap::new();
        for (name, column) in self.columns.iter().filter(|(name, _)| wanted(name)) {
            series.insert(name.clone(), SampledSeries::from_column(column, &chunks, per_point));
        }
        let time = |row: &usize| Some(self.times[*row]).filter(|time| time.is_finite()).map(significant);
        SampledCurves {
            x: last.iter().map(|row| self.axis(axis, *row)).collect(),
            steps: last.iter().map(|row| self.steps[*row]).collect(),
            times: last.iter().map(time).collect(),
            kinds: chunks.iter().map(|rows| rows.iter().fold(0, |all, row| all | self.kinds[*row])).collect(),
            series,
            per_point,
        }
    }

    /// Returns the rows from an index on, unsampled, for a page that already has the earlier ones.
    #[must_use]
    pub fn appended(&self, from: usize) -> Value {
        let mut values = Map::new();
        for (name, column) in &self.columns {
            if column[from..].iter().any(|value| value.is_finite()) {
                let all = column[from..].iter().map(|value| value.is_finite().then(|| rounded(*value)));
                values.insert(name.clone(), all.collect::<Vec<_>>().into());
            }
        }
        let times = self.times[from..].iter().map(|time| time.is_finite().then_some(*time)).collect::<Vec<_>>();
        serde_json::json!({ "steps": self.steps[from..], "times": times, "kinds": self.kinds[from..], "values": values })
    }
}

impl SampledSeries {
    fn from_column(column: &[f32], chunks: &[&[usize]], per_point: usize) -> Self {
        let mut this = Self::default();
        for rows in chunks {
            let (mut sum, mut count, mut low, mut high) = (0.0, 0u32, f32::INFINITY, f32::NEG_INFINITY);
            for value in rows.iter().map(|row| column[*row]).filter(|value| value.is_finite()) {
                (sum, count) = (sum + f64::from(value), count + 1);
                (low, high) = (low.min(value), high.max(value));
            }
            let has = |value: f64| (count > 0).then(|| significant(value));
            this.y.push(has(sum / f64::from(count)));
            if per_point > 1 {
                this.lo.push(has(f64::from(low)));
                this.hi.push(has(f64::from(high)));
            }
        }
        this
    }
}

/// Converts a value to double precision with the digits that it has in single precision.
#[must_use]
pub fn rounded(value: f32) -> f64 {
    significant(f64::from(value))
}

/// Rounds a number to six significant digits; a curve can't show more.
fn significant(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() || value.abs() < 1e-300 {
        return value;
    }
    let digits = 5 - value.abs().log10().floor() as i32;
    let unit = 10f64.powi(digits.abs());
    if digits >= 0 { (value * unit).round() / unit } else { (value / unit).round() * unit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    fn read(text: &str) -> LiveMetrics {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let mut metrics = LiveMetrics::new(file.path().to_owned());
        assert!(metrics.advance(Instant::now() + Duration::from_secs(60)).unwrap());
        metrics
    }

    fn all(points: usize) -> CurveQuery<'static> {
        CurveQuery { axis: CurveAxis::Step, ends: (f64::NEG_INFINITY, f64::INFINITY), points, breaks: &[] }
    }

    #[test]
    fn rows_of_a_step_are_one_and_a_resume_takes_steps_again() {
        let metrics = read(concat!(
            "{\"step\":1,\"time\":1,\"loss\":4}\n{\"step\":2,\"time\":2,\"loss\":3}\n{\"step\":2,\"eval_loss\":5}\n",
            "nonsense\n{\"step\":3,\"time\":3,\"loss\":2}\n{\"step\":2,\"time\":2.5,\"loss\":2.5}\n",
        ));
        assert_eq!((metrics.steps.as_slice(), metrics.generation), (&[1, 2][..], 1));
        let sampled = metrics.sample(&|_| true, &all(100));
        assert_eq!(sampled.x, [1.0, 2.0]);
        assert_eq!(sampled.series["loss"].y, [Some(4.0), Some(2.5)]);
        assert_eq!(sampled.series["eval_loss"].y, [None, Some(5.0)]);
        // A metric that a step did not measure leaves no gap.
        assert_eq!((sampled.kinds, sampled.times), (vec![1, 3], vec![Some(1.0), Some(5.5)]));
        assert_eq!((metrics.last("loss"), metrics.seconds(), metrics.seconds_of_process()), (Some(2.5), Some(5.5), Some(2.5)));
        assert_eq!(metrics.rate(), Some(1.0 / 4.5));
    }

    #[test]
    fn time_goes_on_where_a_run_resumes() {
        let metrics = read(concat!(
            "{\"step\":10,\"time\":1029.1,\"a\":1}\n{\"step\":10,\"time\":1030,\"eval_a\":1}\n{\"step\":10,\"time\":1031,\"eval_a\":1}\n",
            // Resumed from step 10, then from step 11 by a process that started more slowly.
            "{\"step\":11,\"time\":1.5,\"a\":1}\n{\"step\":12,\"time\":2.5,\"a\":1}\n{\"step\":12,\"time\":4,\"a\":1}\n",
            "{\"step\":13,\"time\":-1,\"a\":1}\n{\"step\":14,\"time\":1e300,\"a\":1}\n{\"step\":15,\"time\":6,\"a\":1}\n",
        ));
        let sampled = metrics.sample(&|_| true, &CurveQuery { axis: CurveAxis::Time, ..all(100) });
        assert_eq!(sampled.x, [1031.0, 1032.5, 1037.5, 1039.5]);
        assert_eq!(sampled.steps, [10, 11, 12, 15]);
    }

    #[test]
    fn many_rows_become_few_points_with_extremes() {
        let text: String =
            (0..1000).map(|step| format!("{{\"step\":{step},\"num_tokens\":{},\"a\":{}}}\n", step * 10, step % 2)).collect();
        let metrics = read(&text);
        let sampled =
            metrics.sample(&|name| name == "a", &CurveQuery { axis: CurveAxis::Tokens, ends: (0.0, 4990.0), ..all(50) });
        assert_eq!((sampled.x.len(), sampled.per_point, sampled.series.len()), (50, 10, 1));
        let series = &sampled.series["a"];
        assert_eq!((series.y[7], series.lo[7], series.hi[7]), (Some(0.5), Some(0.0), Some(1.0)));
        assert_eq!(sampled.x.last(), Some(&4990.0));
        let appended = metrics.appended(998);
        assert_eq!(appended["steps"], serde_json::json!([998, 999]));
        assert_eq!(appended["values"]["a"], serde_json::json!([0.0, 1.0]));
    }

    #[test]
    fn no_point_stands_for_steps_on_both_sides_of_a_swap() {
        let text: String = (1..=9000).map(|step| format!("{{\"step\":{step},\"a\":{}}}\n", u8::from(step > 2500))).collect();
        let sampled = read(&text).sample(&|_| true, &CurveQuery { breaks: &[2500], ..all(2000) });
        assert!(sampled.per_point > 1 && sampled.steps.contains(&2500) && sampled.steps.last() == Some(&9000));
        assert!(sampled.series["a"].y.iter().all(|value| [Some(0.0), Some(1.0)].contains(value)), "a mean of two versions");
    }

    #[test]
    fn rows_tell_where_versions_change_and_a_resume_takes_that_back() {
        let row = |step: u64, version: &str| format!("{{\"step\":{step},\"a\":1,\"versions\":{{\"r\":\"{version}\"}}}}\n");
        let text = [row(1, "aa"), row(2, "aa"), row(3, "bb"), row(4, "cc")].concat();
        assert_eq!(read(&text).breaks().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(read(&(text + &row(3, "aa") + &row(4, "dd"))).breaks().collect::<Vec<_>>(), [3]);
        let evaluated =
            read("{\"step\":1,\"a\":1}\n{\"step\":5,\"eval_a\":1}\n{\"step\":6,\"a\":1}\n{\"step\":6,\"eval_a\":1}\n");
        assert_eq!(evaluated.sample(&|_| true, &all(9)).kinds, [1, 2, 3]);
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.1f32, -9.90625, 1e-9, 123_456_790.0, 0.0].map(|v| serde_json::to_string(&rounded(v)).unwrap());
        assert_eq!(all, ["0.1", "-9.90625", "1e-9", "123457000.0", "0.0"]);
    }
}
