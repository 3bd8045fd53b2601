//! Compares runs: the settings that differ, final and best values, and curves on one page. Runs that differ only in their seed form one
//! group, with a mean and a band.

mod curve;
mod run;
#[cfg(test)]
mod tests;

pub use curve::GroupCurve;
pub use run::ComparedRun;
pub(super) use run::flatten;

use super::Error;
use super::eras::Eras;
use crate::run::RunFiles;
use run::VERSION;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of runs of a comparison, and of the values of all their metrics.
pub const MOST_RUNS: usize = 512;
const MOST_VALUES: usize = 40 << 20;

/// Settings that don't divide groups: the runs of a group may have different values.
const NEUTRAL: [&str; 8] =
    ["seed", "output_dir", "run_name", "num_threads", "metrics_port", "metrics_address", "report_to", "log_completions"];

/// Settings that always differ, and are not reported as differences.
const OWN: [&str; 3] = ["seed", "output_dir", "run_name"];

/// Maximum number of settings in a group's name.
const IN_NAME: usize = 3;

/// Metrics that show how good a run is, followed by others to look at first, in this order. `*` is the name of a reward or a number.
const KEY: [&str; 20] = [
    "eval_reward",
    "reward",
    "eval_rewards/*/mean",
    "rewards/*/mean",
    "eval_pass@*",
    "eval_maj@*",
    "eval_objective/scores",
    "objective/scores",
    "eval_rewards/accuracies",
    "rewards/accuracies",
    "eval_mean_token_accuracy",
    "mean_token_accuracy",
    "eval_loss",
    "loss",
    "kl",
    "objective/kl",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "grad_norm",
];

/// The end of a metric's range that is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricGoal {
    /// Maximum, as for a reward.
    Greatest,
    /// Minimum, as for a loss.
    Least,
}

impl MetricGoal {
    /// Returns the goal for a metric of this name; `None` if neither end is better.
    #[must_use]
    pub fn from_metric(name: &str) -> Option<Self> {
        let plain = name.strip_prefix("eval_").unwrap_or(name);
        let is_score = ["reward", "objective/scores", "rewards/accuracies", "rewards/margins", "mean_token_accuracy"]
            .contains(&plain)
            || (plain.starts_with("rewards/") && plain.ends_with("/mean"))
            || ["pass@", "maj@"].iter().any(|start| plain.starts_with(start));
        match plain {
            _ if is_score => Some(Self::Greatest),
            _ if plain.ends_with("loss") => Some(Self::Least),
            _ => None,
        }
    }
}

/// Deviation, relative to the mean, up to which values are equal except for rounding.
const ROUNDING: f64 = 1e-12;

/// The mean over a group's runs, with the standard deviation if there are several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeedSpread {
    /// Mean of the runs' values.
    pub mean: f64,
    /// Standard deviation of the runs' values.
    pub deviation: Option<f64>,
}

impl SeedSpread {
    /// Computes the mean and deviation of these values; `None` if there are no values. A deviation that comes from rounding is 0.
    #[must_use]
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = || values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let without_noise = |deviation: f64| if deviation <= ROUNDING * mean.abs() { 0.0 } else { deviation };
        let deviation = (values.len() > 1).then(|| without_noise(variance().sqrt()));
        (!values.is_empty()).then_some(Self { mean, deviation })
    }
}

/// Runs that differ only in their seed.
#[derive(Debug)]
pub struct SeedGroup {
    /// Settings that distinguish the group, or a run's name.
    pub name: String,
    /// Indices of the group's runs.
    pub runs: Vec<usize>,
}

/// A setting that differs, with its values in each group.
#[derive(Debug, PartialEq)]
pub struct SettingDifference {
    /// Dotted key of the setting.
    pub key: String,
    /// Values, in the order of the groups.
    pub values: Vec<String>,
    /// Whether the setting divides runs into groups.
    pub divides: bool,
}

/// A comparison of runs.
#[derive(Debug)]
pub struct RunComparison {
    /// Compared runs.
    pub runs: Vec<ComparedRun>,
    /// Groups of the runs.
    pub groups: Vec<SeedGroup>,
    /// Settings that differ.
    pub differences: Vec<SettingDifference>,
    /// Names of all metrics; the key metrics come first.
    pub metrics: Vec<String>,
    /// Number of key metrics.
    pub key_metrics: usize,
    /// Parts that could not be read.
    pub notes: Vec<String>,
}

impl RunComparison {
    /// Reads runs. A folder that is not a run's, such as that of a sweep, stands for the runs in it.
    ///
    /// # Errors
    /// If a path is not a run's folder and contains none, there are fewer than two runs or too many, or one of their files can't be read.
    pub fn load(paths: &[PathBuf]) -> Result<Self, Error> {
        let folders = expanded(paths)?;
        let refuse = |detail: String| Err(Error::NotARun { path: paths.first().cloned().unwrap_or_default(), detail });
        match folders.len() {
            0 | 1 => return refuse("is one run; give the folders of two or more, or that of a sweep".into()),
            n if n > MOST_RUNS => return refuse(format!("these are {n} runs; at most {MOST_RUNS} are compared")),
            _ => {}
        }
        let (mut runs, mut notes, mut values) = (Vec::new(), Vec::new(), 0);
        for folder in &folders {
            let mut run = ComparedRun::load(folder, &mut notes)?;
            values += run.series.values().map(Vec::len).sum::<usize>();
            if values > MOST_VALUES {
                notes.push(format!("{}: its metrics are left out, since all runs together have too many values", run.name));
                run.series.clear();
            }
            runs.push(run);
        }
        // Runs given by name stay in their order; those of a folder are sorted by name, as text.
        Ok(Self::new(runs, notes, paths.len() == 1))
    }

    fn new(mut runs: Vec<ComparedRun>, notes: Vec<String>, by_value: bool) -> Self {
        distinguish(&mut runs);
        summarize_plugins_of_some(&mut runs);
        let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
        let value = |run: &ComparedRun, key: &str| run.settings.get(key).cloned().unwrap_or_else(|| "not set".to_owned());
        let differs = |key: &&&String| runs.iter().any(|run| run.settings.get(**key) != runs[0].settings.get(**key));
        let differing: Vec<&String> = keys.iter().filter(|key| !OWN.contains(&key.as_str())).filter(differs).copied().collect();
        let dividing: Vec<&String> = differing.iter().filter(|key| !NEUTRAL.contains(&key.as_str())).copied().collect();
        let mut groups: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
        for (i, run) in runs.iter().enumerate() {
            let own: Vec<String> = dividing.iter().map(|key| value(run, key)).collect();
            match groups.iter_mut().find(|(values, _)| *values == own) {
                Some((_, members)) => members.push(i),
                None => groups.push((own, vec![i])),
            }
        }
        if by_value {
            groups.sort_by(|(a, _), (b, _)| by_size(a, b));
        }
        let name = |(values, members): &(Vec<String>, Vec<usize>)| {
            let parts: Vec<String> = dividing.iter().zip(values).map(|(key, value)| format!("{key} {value}")).collect();
            match parts.len() {
                1..=IN_NAME => parts.join(", "),
                0 => "all runs".to_owned(),
                _ => runs[members[0]].name.clone(),
            }
        };
        let named = groups.iter().map(|group| SeedGroup { name: name(group), runs: group.1.clone() }).collect();
        let difference = |key: &&String| {
            let of_group = |(_, members): &(Vec<String>, Vec<usize>)| {
                let values: BTreeSet<String> = members.iter().map(|&i| value(&runs[i], key)).collect();
                values.into_iter().collect::<Vec<_>>().join(", ")
            };
            SettingDifference {
                key: (*key).clone(),
                values: groups.iter().map(of_group).collect(),
                divides: dividing.contains(key),
            }
        };
        let differences = differing.iter().map(difference).collect();
        let (metrics, key_metrics) = metrics(&runs);
        Self { groups: named, differences, metrics, key_metrics, notes, runs }
    }

    /// Returns the mean over a group's runs of a metric's last value.
    #[must_use]
    pub fn last(&self, group: &SeedGroup, metric: &str) -> Option<SeedSpread> {
        let last = |&i: &usize| self.runs[i].series.get(metric)?.last().map(|(_, value)| *value);
        SeedSpread::from_values(&group.runs.iter().filter_map(last).collect::<Vec<f64>>())
    }

    /// Returns the end of a metric's range that is better in these runs; `None` if neither is. A policy's loss measures nothing if it is
    /// computed from rewards: it is about 0 for on-policy samples, however good they are.
    #[must_use]
    pub fn goal(&self, metric: &str) -> Option<MetricGoal> {
        let is_of_policy = ["loss", "policy_loss"].contains(&metric.strip_prefix("eval_").unwrap_or(metric));
        let has_rewards = || self.runs.iter().any(|run| run.series.contains_key("reward"));
        MetricGoal::from_metric(metric).filter(|_| !(is_of_policy && has_rewards()))
    }

    /// Returns the mean over a group's runs of a metric's best value; `None` if neither end is better. For a reward, only values since the
    /// last change of what determines it count: earlier ones belong to a different reward.
    #[must_use]
    pub fn best(&self, group: &SeedGroup, metric: &str) -> Option<SeedSpread> {
        let best = self.goal(metric)?;
        let best_of = |&i: &usize| {
            let run = &self.runs[i];
            let since = run.breaks(metric).pop().filter(|_| Eras::is_of_rewards(metric));
            let values = run.series.get(metric)?.iter().filter(|(step, _)| since.is_none_or(|since| *step > since));
            let values = values.map(|(_, value)| *value);
            match best {
                MetricGoal::Greatest => values.reduce(f64::max),
                MetricGoal::Least => values.reduce(f64::min),
            }
        };
        SeedSpread::from_values(&group.runs.iter().filter_map(best_of).collect::<Vec<f64>>())
    }

    /// Returns the seeds of a group's runs, as text.
    #[must_use]
    pub fn seeds(&self, group: &SeedGroup) -> String {
        let seeds: BTreeSet<&str> =
            group.runs.iter().filter_map(|&i| Some(self.runs[i].settings.get("seed")?.as_str())).collect();
        let mut seeds: Vec<&str> = seeds.into_iter().collect();
        seeds.sort_by_key(|seed| (seed.len(), *seed));
        seeds.join(", ")
    }

    /// Returns the states of a group's runs, as text.
    #[must_use]
    pub fn states(&self, group: &SeedGroup) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        group.runs.iter().for_each(|&i| *counts.entry(self.runs[i].state).or_default() += 1);
        match counts.len() {
            1 => counts.into_keys().collect(),
            _ => counts.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", "),
        }
    }

    /// Returns the last logged steps of a group's runs, as text.
    #[must_use]
    pub fn steps(&self, group: &SeedGroup) -> String {
        let steps = || group.runs.iter().map(|&i| self.runs[i].last_step);
        let (least, most) = (steps().min().unwrap_or(0), steps().max().unwrap_or(0));
        if least == most { least.to_string() } else { format!("{least} to {most}") }
    }

    /// Returns the mean of a group's runs over the steps, with about `most` points at most.
    #[must_use]
    pub fn curve(&self, group: &SeedGroup, metric: &str, most: usize) -> GroupCurve {
        let runs: Vec<&ComparedRun> = group.runs.iter().map(|&i| &self.runs[i]).collect();
        GroupCurve::new(&runs, metric, most)
    }
}

/// Returns the run folders that paths stand for, each once.
fn expanded(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let (mut folders, mut known) = (Vec::new(), BTreeSet::new());
    for path in paths {
        let inside = if RunFiles(path).exist() { Vec::new() } else { inside(path) };
        let found = if inside.is_empty() { vec![path.clone()] } else { inside };
        for folder in found {
            super::check(&folder)?;
            if known.insert(fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone())) {
                folders.push(folder);
            }
        }
    }
    Ok(folders)
}

/// Returns the run folders in a folder, sorted by name.
fn inside(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = entries.filter(|path| RunFiles(path).exist()).take(MOST_RUNS + 1).collect();
    runs.sort();
    runs
}

/// Compares values as numbers where they are numbers.
fn by_size(a: &[String], b: &[String]) -> Ordering {
    let one = |(a, b): (&String, &String)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    };
    a.iter().zip(b).map(one).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Returns the keys with this prefix whose values differ between the runs that have them.
fn differing_of_some(runs: &[ComparedRun], prefix: &str) -> BTreeSet<String> {
    let all = runs.iter().flat_map(|run| &run.settings).filter(|(key, _)| key.starts_with(prefix));
    let mut first: BTreeMap<&String, &String> = BTreeMap::new();
    let others = all.filter(|(key, value)| *first.entry(key).or_insert(value) != *value);
    let differing: Vec<String> = others.map(|(key, _)| key.clone()).collect();
    differing.into_iter().collect()
}

/// Replaces the settings of a plugin that not all runs have by one setting, except for those that differ between the runs that have it.
fn summarize_plugins_of_some(runs: &mut [ComparedRun]) {
    for table in ["plugin.", "environment."] {
        let named = |key: &String| Some(key.strip_prefix(table)?.strip_suffix(".path")?.to_owned());
        let names: BTreeSet<String> = runs.iter().flat_map(|run| run.settings.keys().filter_map(named)).collect();
        for name in names {
            let (key, path) = (format!("{table}{name}"), format!("{table}{name}.path"));
            if runs.iter().all(|run| run.settings.contains_key(&path)) {
                continue;
            }
            let differing = differing_of_some(runs, &format!("{key}."));
            for run in runs.iter_mut() {
                let weight = run.settings.get(&format!("{key}.weight")).map(|weight| format!("weight {weight}"));
                let value = if run.settings.contains_key(&path) {
                    weight.unwrap_or_else(|| "there".to_owned())
                } else {
                    "none".to_owned()
                };
                let is_told = |own: &String| own.starts_with(&format!("{key}.")) && !differing.contains(own);
                run.settings.retain(|own, _| !is_told(own));
                run.settings.insert(key.clone(), value);
            }
        }
    }
    // For runs without events, and for plugins that not all runs have, versions are meaningless.
    let versions: BTreeSet<String> =
        runs.iter().flat_map(|run| run.settings.keys().filter(|key| key.starts_with(VERSION)).cloned()).collect();
    for key in versions {
        if !runs.iter().all(|run| run.settings.contains_key(&key)) && differing_of_some(runs, &key).is_empty() {
            runs.iter_mut().for_each(|run| drop(run.settings.remove(&key)));
        }
    }
}

/// Appends the folders' names to the names of runs that are equal.
fn distinguish(runs: &mut [ComparedRun]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    runs.iter().for_each(|run| *counts.entry(run.name.clone()).or_default() += 1);
    for run in runs.iter_mut().filter(|run| counts[&run.name] > 1) {
        run.name = crate::config::printable_path(&run.path);
    }
}

/// Returns the names of all metrics, and the number of key metrics.
fn metrics(runs: &[ComparedRun]) -> (Vec<String>, usize) {
    let mut names: BTreeSet<&String> = runs.iter().flat_map(|run| run.series.keys()).collect();
    let mut metrics: Vec<String> = Vec::new();
    // With a single reward, its mean is the total.
    let means = names.iter().filter(|name| name.starts_with("rewards/") && name.ends_with("/mean")).count();
    for pattern in KEY.into_iter().filter(|pattern| means > 1 || !pattern.ends_with("rewards/*/mean")) {
        let is_meant = |name: &str| match pattern.split_once('*') {
            None => name == pattern,
            Some((start, end)) => name.len() > start.len() + end.len() && name.starts_with(start) && name.ends_with(end),
        };
        let meant: Vec<&String> = names.iter().filter(|name| is_meant(name)).copied().collect();
        for name in meant {
            names.remove(name);
            metrics.push(name.clone());
        }
    }
    let key_metrics = metrics.len();
    metrics.extend(names.into_iter().cloned());
    (metrics, key_metrics)
}
