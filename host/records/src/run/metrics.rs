//! The rows of metrics.jsonl, for everything that reads the file.
//!
//! A step can have two rows: one of training and one of an evaluation. Every reader uses [`each_metrics_row`] or [`RunMetrics::load`], so
//! that no reader loses one of them.

use super::{PluginVersion, RunFiles, each_own_line};
use crate::config::printable;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Prefix of the names of an evaluation's metrics.
const EVALUATION: &str = "eval_";
/// Keys of both kinds of rows that are not metrics.
const OF_BOTH: [&str; 2] = ["epoch", "time"];
const STEP: &str = "step";
const VERSIONS: &str = "versions";

/// Maximum number of plugins in a row, and maximum length of a plugin's name or hash, in bytes.
const MOST_PLUGINS: usize = 256;
const LONGEST_NAME: usize = 200;

/// Maximum number of values that [`RunMetrics::load`] keeps.
const MOST_VALUES: usize = 4 << 20;

/// The kind of a row of metrics.jsonl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKind {
    /// Training steps since the last row of this kind.
    Train,
    /// An evaluation after a step.
    Evaluation,
}

impl RowKind {
    /// Returns the kind of the rows that have a metric of this name; `None` if both kinds do.
    pub fn from_metric(name: &str) -> Option<Self> {
        match name {
            _ if OF_BOTH.contains(&name) => None,
            _ if name.starts_with(EVALUATION) => Some(Self::Evaluation),
            _ => Some(Self::Train),
        }
    }
}

/// A row of metrics.jsonl.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsRow {
    /// Number of steps done.
    pub step: u64,
    /// Kind of the row.
    pub kind: RowKind,
    /// Versions of the plugins in use, with the first digits of their hashes, by name. Empty in runs of older versions.
    pub versions: BTreeMap<String, PluginVersion>,
    /// All other values, including `epoch` and `time`, in the order of the row; `None` for a value that is not a finite number.
    pub values: Vec<(String, Option<f64>)>,
}

impl MetricsRow {
    /// Reads a line; `None` if it has no step.
    pub fn from_line(line: &Map<String, Value>) -> Option<Self> {
        let step = line.get(STEP)?.as_u64()?;
        let versions = line.get(VERSIONS).and_then(Value::as_object).into_iter().flatten().take(MOST_PLUGINS);
        let versions =
            versions.filter_map(|(name, version)| Some((shown(name), PluginVersion::parse(&shown(version.as_str()?)))));
        // A value of `versions` that is not an object is a metric like any other.
        let is_metric = |name: &str, value: &Value| name != STEP && !(name == VERSIONS && value.is_object());
        let values = line.iter().filter(|(name, value)| is_metric(name, value));
        let values: Vec<_> = values.map(|(name, v)| (name.clone(), v.as_f64().filter(|v| v.is_finite()))).collect();
        let has = |kind| values.iter().any(|(name, _)| RowKind::from_metric(name) == Some(kind));
        let of_evaluation = has(RowKind::Evaluation) && !has(RowKind::Train);
        let kind = if of_evaluation { RowKind::Evaluation } else { RowKind::Train };
        Some(Self { step, kind, versions: versions.collect(), values })
    }

    /// Returns a metric's value.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(own, _)| own == name)?.1
    }
}

fn shown(text: &str) -> String {
    printable(text, LONGEST_NAME)
}

/// Returns a metric's name in printable form.
pub fn metric_name(name: &str) -> String {
    shown(name)
}

/// Calls `take` with each row of a run's metrics.jsonl, in the order of the file, in which a resumed run may repeat steps. Returns notes on
/// parts that could not be read.
///
/// # Errors
/// If the file is missing, is not a regular file, is a link or can't be read.
pub fn each_metrics_row(run: &Path, mut take: impl FnMut(MetricsRow)) -> io::Result<Vec<String>> {
    let mut without_step = 0u64;
    let unread = each_own_line(run, &RunFiles(run).metrics(), |line| match MetricsRow::from_line(&line) {
        Some(row) => take(row),
        None => without_step += 1,
    })?;
    let mut notes = unread.notes(RunFiles::METRICS);
    match without_step {
        0 => {}
        1 => notes.push(format!("{}: 1 line has no step and is ignored", RunFiles::METRICS)),
        n => notes.push(format!("{}: {n} lines have no step and are ignored", RunFiles::METRICS)),
    }
    Ok(notes)
}

/// All metrics of a run, for comparisons of runs.
#[derive(Clone, Debug, Default)]
pub struct RunMetrics {
    /// Rows sorted by step, a step's training row before its evaluation row. Of several rows of the same step and kind, the newest.
    pub rows: Vec<MetricsRow>,
    /// Notes on parts that could not be read.
    pub notes: Vec<String>,
}

impl RunMetrics {
    /// Reads a run's metrics.jsonl, up to a number of values.
    ///
    /// # Errors
    /// If the file is missing, is not a regular file or can't be read.
    pub fn load(run: &Path) -> io::Result<Self> {
        let (mut rows, mut values, mut left_out) = (BTreeMap::new(), 0, 0u64);
        let mut notes = each_metrics_row(run, |row| {
            values += row.values.len() + 1;
            match values <= MOST_VALUES {
                true => drop(rows.insert((row.step, row.kind), row)),
                false => left_out += 1,
            }
        })?;
        if left_out > 0 {
            notes.push(format!("{}: only the first {MOST_VALUES} values are read; {left_out} rows are not", RunFiles::METRICS));
        }
        Ok(Self { rows: rows.into_values().collect(), notes })
    }

    /// Returns the steps and values of a metric, without steps where it is missing.
    #[cfg(test)]
    fn series(&self, name: &str) -> Vec<(u64, f64)> {
        self.rows.iter().filter_map(|row| Some((row.step, row.value(name)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn load(lines: &str) -> RunMetrics {
        let run = tempfile::tempdir().unwrap();
        fs::write(RunFiles(run.path()).metrics(), lines).unwrap();
        RunMetrics::load(run.path()).unwrap()
    }

    #[test]
    fn a_step_has_a_row_of_training_and_one_of_an_evaluation() {
        let metrics = load(concat!(
            "{\"step\":0,\"epoch\":0,\"time\":0.5,\"eval_loss\":2}\n",
            "{\"step\":10,\"epoch\":1,\"time\":1,\"loss\":1.5,\"reward\":null}\n",
            "{\"step\":10,\"epoch\":1,\"time\":2,\"eval_loss\":1.25,\"eval_rewards/a/mean\":3}\n",
            "{\"step\":20,\"loss\":1,\"versions\":{\"a\":\"0123+9a\",\"b\\u001b\":\"45\",\"c\":6}}\n",
        ));
        let kinds: Vec<(u64, RowKind)> = metrics.rows.iter().map(|row| (row.step, row.kind)).collect();
        assert_eq!(kinds, [(0, RowKind::Evaluation), (10, RowKind::Train), (10, RowKind::Evaluation), (20, RowKind::Train)]);
        assert_eq!(metrics.series("loss"), [(10, 1.5), (20, 1.0)]);
        assert_eq!(metrics.series("eval_loss"), [(0, 2.0), (10, 1.25)]);
        assert_eq!((metrics.series("reward"), metrics.rows[1].value("time")), (vec![], Some(1.0)));
        let versions: Vec<(&str, String)> = metrics.rows[3].versions.iter().map(|(a, b)| (a.as_str(), b.to_string())).collect();
        assert_eq!(versions, [("a", "0123+9a".to_owned()), ("b\\u{1b}", "45".to_owned())]);
        assert!(metrics.rows[3].values.iter().all(|(name, _)| name != "versions") && metrics.rows[0].versions.is_empty());
        assert!(metrics.notes.is_empty(), "{:?}", metrics.notes);
    }

    #[test]
    fn the_newest_row_of_a_step_counts_and_damage_is_named() {
        let metrics = load(concat!(
            "{\"step\":2,\"loss\":1}\nnonsense\n{\"step\":-1,\"loss\":5}\n{\"loss\":5}\n{\"step\":1,\"loss\":4,\"versions\":7}\n",
            "{\"step\":2,\"eval_loss\":9}\n{\"step\":2,\"loss\":3}\n{\"step\":3,\"lo",
        ));
        assert_eq!(metrics.series("loss"), [(1, 4.0), (2, 3.0)]);
        assert_eq!((metrics.series("eval_loss"), metrics.series("versions")), (vec![(2, 9.0)], vec![(1, 7.0)]));
        let notes = ["line 2 is not a JSON object and is ignored", "2 lines have no step and are ignored"];
        assert_eq!(metrics.notes, notes.map(|note| format!("metrics.jsonl: {note}")));
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(RunMetrics::load(nowhere.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
