//! The table of a sweep: the grid's combinations, with means and spreads over the seeds.

use super::plan::SweepPlan;
use crate::cli::columns::{aligned, spread};
use crate::config::{did_you_mean, printable};
use crate::report::SeedSpread;
use crate::run::each_metrics_row;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of remembered metric names, and of a metric's values.
const MOST_NAMES: usize = 4096;
const MOST_VALUES: usize = 4 << 20;

/// Maximum length of a printed name or value, in bytes.
const SHOWN: usize = 60;

/// Metrics that say how good a run became, the best first. By default, the table shows the first that the runs have.
const USUAL: [&str; 6] = ["eval_reward", "reward", "objective/scores", "rewards/accuracies", "eval_loss", "loss"];

/// Logged values of the wanted metrics of a run.
struct LoggedValues {
    /// Mean of the last values of each metric.
    values: BTreeMap<String, f64>,
    /// Names of all metrics.
    names: BTreeSet<String>,
}

/// Reads a run's metrics.
fn logged(run: &Path, wanted: &[&str], last: usize) -> LoggedValues {
    let (mut series, mut names) = (BTreeMap::<&str, BTreeMap<u64, f64>>::new(), BTreeSet::new());
    // A run that logged nothing has no values.
    let _ = each_metrics_row(run, |row| {
        for (name, value) in row.values {
            if let (Some(wanted), Some(value)) = (wanted.iter().find(|wanted| **wanted == name), value) {
                let series = series.entry(*wanted).or_default();
                if series.len() < MOST_VALUES {
                    series.insert(row.step, value);
                }
            }
            if names.len() < MOST_NAMES && !names.contains(&name) {
                names.insert(name);
            }
        }
    });
    let mean = |values: &BTreeMap<u64, f64>| {
        let last: Vec<f64> = values.values().rev().take(last).copied().collect();
        last.iter().sum::<f64>() / last.len() as f64
    };
    LoggedValues { values: series.iter().map(|(name, values)| ((*name).to_owned(), mean(values))).collect(), names }
}

/// The table, and notes about it.
pub(super) struct SweepTable {
    pub lines: Vec<String>,
    pub note: Option<String>,
}

impl SweepTable {
    /// Reads the runs of a sweep; `finished` marks those that are complete.
    pub(super) fn read(plan: &SweepPlan, finished: &[bool]) -> Self {
        let wanted: Vec<&str> =
            if plan.metrics.is_empty() { USUAL.to_vec() } else { plan.metrics.iter().map(String::as_str).collect() };
        let logged: Vec<LoggedValues> =
            plan.runs.iter().map(|run| logged(&plan.folder.join(&run.name), &wanted, plan.last)).collect();
        let has = |name: &&str| logged.iter().any(|logged| logged.values.contains_key(*name));
        let metrics: Vec<&str> =
            if plan.metrics.is_empty() { wanted.into_iter().find(has).into_iter().collect() } else { wanted };
        let mut rows: Vec<Vec<String>> = Vec::new();
        let heading = plan.keys.iter().map(|key| printable(key, SHOWN)).chain(["runs".to_owned()]);
        rows.push(heading.chain(metrics.iter().map(|name| printable(name, SHOWN))).collect());
        let combinations = plan.runs.iter().map(|run| run.combination + 1).max().unwrap_or(0);
        for combination in 0..combinations {
            let own: Vec<usize> = (0..plan.runs.len()).filter(|&i| plan.runs[i].combination == combination).collect();
            let mut row: Vec<String> = plan.runs[own[0]].values.clone();
            let done = own.iter().filter(|&&i| finished[i]).count();
            row.push(if done == own.len() { done.to_string() } else { format!("{done} of {}", own.len()) });
            for name in &metrics {
                // Unfinished runs are left out, because they are at an earlier step.
                let values = own.iter().filter(|&&i| finished[i]).filter_map(|&i| logged[i].values.get(*name).copied());
                row.push(spread(SeedSpread::from_values(&values.collect::<Vec<_>>())));
            }
            rows.push(row);
        }
        Self { lines: aligned(&rows), note: note(&metrics, &logged, plan.metrics.is_empty()) }
    }
}

/// Returns a note that names a metric that no run has.
fn note(metrics: &[&str], logged: &[LoggedValues], is_usual: bool) -> Option<String> {
    let names: BTreeSet<&str> = logged.iter().flat_map(|logged| &logged.names).map(String::as_str).collect();
    if names.is_empty() {
        return Some("no run has logged any metrics".to_owned());
    }
    if is_usual && metrics.is_empty() {
        return Some("no run has logged a usual metric; name one with --metric".to_owned());
    }
    let missing = metrics.iter().find(|name| !names.contains(**name))?;
    let near = did_you_mean(missing, names.iter().copied());
    Some(format!("no run has logged the metric {:?}{near}", printable(missing, SHOWN)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunFiles;

    #[test]
    fn the_last_values_count_also_of_steps_that_were_taken_again() {
        let run = tempfile::tempdir().unwrap();
        let rows =
            "{\"step\":1,\"reward\":1}\n{\"step\":2,\"reward\":9}\n{\"step\":2,\"eval_reward\":5}\n{\"step\":2,\"reward\":3}\n";
        std::fs::write(RunFiles(run.path()).metrics(), rows).unwrap();
        let last = |last| logged(run.path(), &["reward", "eval_reward"], last).values;
        assert_eq!(last(1), BTreeMap::from([("reward".to_owned(), 3.0), ("eval_reward".to_owned(), 5.0)]));
        assert_eq!(last(2)["reward"], 2.0);
    }
}
