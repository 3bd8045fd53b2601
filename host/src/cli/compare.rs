//! `rlhost compare`: compares runs in tables and on a page.

use super::columns::{print_columns, spread};
use super::failure::CommandFailure;
use super::ui::PagePlugins;
use crate::config::{did_you_mean, printable, printable_path};
use crate::report::{self, MetricGoal, RunComparison, SeedGroup, SettingDifference};
use crate::run::RunFiles;
use anyhow::anyhow;
use rlhost_ui::FrozenPage;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Default name of the page.
const PAGE: &str = "comparison.html";

/// Maximum length of a printed name or value, in bytes.
const SHOWN: usize = 60;

/// Maximum number of metrics in the table unless they are named, and of settings in a group's name.
const METRICS: usize = 6;
const IN_NAME: usize = 3;

/// Separator between the versions of a plugin.
const NEXT: &str = " \u{2192} ";

/// Arguments of `compare`.
#[derive(clap::Args)]
#[command(
    after_help = "Prints the settings that differ, and the last and the best values of each metric, and writes curves to one HTML page, \
                        which loads nothing. Runs that differ in their seed only are one line, with the mean and the standard deviation \
                        over the seeds, and a band around the curve. Curves break where a plugin's version changes."
)]
pub(super) struct Args {
    /// Folders of runs, which may still be running, or folders with runs in them, such as a sweep's
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Metric of the table; may be repeated [default: rewards or losses, of evaluations first]
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// File of the page [default: comparison.html, in the folder with runs if only that is given, otherwise here]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print groups, settings and values as one line of JSON, and write no page unless --output is given
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let comparison = RunComparison::load(&args.runs).map_err(CommandFailure::from_error)?;
    let metrics = metrics(args, &comparison).map_err(CommandFailure::from_error)?;
    comparison.notes.iter().for_each(|note| tracing::warn!("{note}"));
    if args.json {
        say!("{}", line(&comparison, if args.metric.is_empty() { &comparison.metrics } else { &metrics }));
    } else {
        show(&comparison, &metrics);
        left_out(&comparison, &metrics).filter(|_| args.metric.is_empty()).iter().for_each(|text| tracing::info!("{text}"));
    }
    if args.json && args.output.is_none() {
        return Ok(());
    }
    let path = args.output.clone().unwrap_or_else(|| page_path(&args.runs));
    let page = FrozenPage::from_comparison(&comparison, PagePlugins).map_err(CommandFailure::from_error)?;
    page.write(&path).map_err(CommandFailure::from_error)?;
    if !args.json {
        say!("\ncurves: {}", printable_path(&path));
    }
    Ok(())
}

/// Returns the default path of the page.
pub(super) fn page_path(runs: &[PathBuf]) -> PathBuf {
    match runs {
        [folder] if !RunFiles(folder).exist() => folder.join(PAGE),
        _ => PathBuf::from(PAGE),
    }
}

/// Returns the metrics of the table.
fn metrics(args: &Args, comparison: &RunComparison) -> anyhow::Result<Vec<String>> {
    if args.metric.is_empty() {
        return Ok(with_best(comparison).take(METRICS).cloned().collect());
    }
    let known = || comparison.metrics.iter().map(String::as_str);
    match args.metric.iter().find(|name| !known().any(|known| known == name.as_str())) {
        Some(unknown) => {
            Err(anyhow!("--metric {}: no run has logged it{}", printable(unknown, SHOWN), did_you_mean(unknown, known())))
        }
        None => Ok(args.metric.clone()),
    }
}

/// Returns the key metrics for which lower or higher is better.
fn with_best(comparison: &RunComparison) -> impl Iterator<Item = &String> {
    comparison.metrics.iter().take(comparison.key_metrics).filter(|name| MetricGoal::from_metric(name).is_some())
}

/// Returns a note that names the metrics left out of the table.
fn left_out(comparison: &RunComparison, metrics: &[String]) -> Option<String> {
    let names = with_best(comparison).filter(|name| !metrics.contains(name)).map(|name| printable(name, SHOWN));
    let names: Vec<String> = names.take(METRICS).collect();
    (!names.is_empty()).then(|| format!("the runs also logged {}, which --metric NAME shows", names.join(", ")))
}

/// Prints the comparison.
fn show(comparison: &RunComparison, metrics: &[String]) {
    let dividing: Vec<&SettingDifference> = comparison.differences.iter().filter(|difference| difference.divides).collect();
    // With fewer settings, they are columns of the other table.
    if dividing.len() > IN_NAME {
        let heading =
            std::iter::once("setting".to_owned()).chain(comparison.groups.iter().map(|group| printable(&group.name, SHOWN)));
        let row = |difference: &&SettingDifference| {
            let values = difference.values.iter().map(|value| shown(value));
            std::iter::once(printable(&difference.key, SHOWN)).chain(values).collect()
        };
        let rows: Vec<Vec<String>> = std::iter::once(heading.collect()).chain(dividing.iter().map(row)).collect();
        print_columns(&rows);
        say!("");
    }
    let rows: Vec<Vec<String>> = std::iter::once(heading(comparison, &dividing, metrics))
        .chain(comparison.groups.iter().enumerate().map(|(i, group)| row(comparison, (i, group), &dividing, metrics)))
        .collect();
    print_columns(&rows);
    for difference in comparison.differences.iter().filter(|difference| !difference.divides) {
        tracing::info!("{}", harmless(difference));
    }
}

/// Describes a setting that differs between runs without dividing them.
fn harmless(difference: &SettingDifference) -> String {
    let (key, values) = (printable(&difference.key, SHOWN), difference.values.join("; "));
    format!("{key} differs too ({values}), which changes no result")
}

/// Formats a setting's value for the table. Of many versions, only the first and the current one are shown in full.
fn shown(value: &str) -> String {
    let parts: Vec<&str> = value.split(NEXT).collect();
    match &parts[..] {
        [first, between @ .., last] if !between.is_empty() && value.len() > SHOWN => {
            printable(&format!("{first}{NEXT}{} more{NEXT}{last}", between.len()), 2 * SHOWN)
        }
        _ => printable(value, SHOWN),
    }
}

fn heading(comparison: &RunComparison, dividing: &[&SettingDifference], metrics: &[String]) -> Vec<String> {
    let keys: Vec<String> = match dividing.len() {
        1..=IN_NAME => dividing.iter().map(|difference| printable(&difference.key, SHOWN)).collect(),
        _ => vec!["runs".to_owned()],
    };
    let values = metrics.iter().flat_map(|name| {
        let best = comparison.goal(name).map(|_| "best".to_owned());
        std::iter::once(printable(name, SHOWN)).chain(best)
    });
    keys.into_iter().chain(["seeds", "steps", "state"].map(str::to_owned)).chain(values).collect()
}

fn row(
    comparison: &RunComparison,
    (i, group): (usize, &SeedGroup),
    dividing: &[&SettingDifference],
    metrics: &[String],
) -> Vec<String> {
    let keys: Vec<String> = match dividing.len() {
        1..=IN_NAME => dividing.iter().map(|difference| shown(&difference.values[i])).collect(),
        _ => vec![printable(&group.name, SHOWN)],
    };
    let values = metrics.iter().flat_map(|name| {
        let best = comparison.goal(name).map(|_| spread(comparison.best(group, name)));
        std::iter::once(spread(comparison.last(group, name))).chain(best)
    });
    let what = [comparison.seeds(group), comparison.steps(group), comparison.states(group)].map(|text| printable(&text, SHOWN));
    keys.into_iter().chain(what).chain(values).collect()
}

/// Returns the contents of the tables as JSON.
fn line(comparison: &RunComparison, metrics: &[String]) -> Value {
    let spread =
        |spread: Option<report::SeedSpread>| spread.map(|spread| json!({ "mean": spread.mean, "deviation": spread.deviation }));
    let group = |(i, group): (usize, &SeedGroup)| {
        let settings: serde_json::Map<String, Value> = comparison
            .differences
            .iter()
            .map(|difference| (difference.key.clone(), difference.values[i].clone().into()))
            .collect();
        let metrics = metrics.iter().filter_map(|name| {
            let last = spread(comparison.last(group, name))?;
            Some((name.clone(), json!({ "last": last, "best": spread(comparison.best(group, name)) })))
        });
        let runs: Vec<Value> = group
            .runs
            .iter()
            .map(|&run| &comparison.runs[run])
            .map(|run| json!({ "path": run.path.to_string_lossy(), "seed": run.settings.get("seed"), "state": run.state, "step": run.last_step }))
            .collect();
        json!({ "name": group.name, "settings": settings, "runs": runs, "metrics": metrics.collect::<serde_json::Map<String, Value>>() })
    };
    json!({ "groups": comparison.groups.iter().enumerate().map(group).collect::<Vec<_>>(), "notes": comparison.notes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_version_in_force_is_shown_whole() {
        let hashes: Vec<String> = (10..20).map(|n| format!("{n}").repeat(6)).collect();
        let chain = |n: usize| hashes[..n].join(NEXT);
        assert_eq!(shown(&chain(3)), chain(3));
        assert_eq!(shown(&chain(10)), "101010101010 \u{2192} 8 more \u{2192} 191919191919");
        assert_eq!(shown("a\u{1b}"), "a\\u{1b}");
    }

    #[test]
    fn a_setting_that_changes_no_result_is_named_as_such() {
        let values = ["not set", "not set", "9477"].map(str::to_owned).to_vec();
        let difference = SettingDifference { key: "metrics_port".to_owned(), values, divides: false };
        assert_eq!(harmless(&difference), "metrics_port differs too (not set; not set; 9477), which changes no result");
    }

    #[test]
    fn the_loss_of_runs_with_rewards_has_a_column_without_a_best() {
        let place = tempfile::tempdir().unwrap();
        let runs = ["a", "b"].map(|name| {
            let folder = place.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(RunFiles(&folder).config(), format!("model = \"{name}\"\n")).unwrap();
            fs::write(RunFiles(&folder).metrics(), "{\"step\":1,\"reward\":1.0,\"loss\":0.5}\n").unwrap();
            fs::write(RunFiles(&folder).events(), "{\"event\":\"started\",\"step\":0}\n").unwrap();
            folder
        });
        let comparison = RunComparison::load(&runs).unwrap();
        let names = ["reward", "loss"].map(str::to_owned);
        assert_eq!(heading(&comparison, &[], &names)[4..], ["reward", "best", "loss"]);
        assert_eq!(row(&comparison, (0, &comparison.groups[0]), &[], &names)[4..], ["1", "1", "0.5"]);
    }

    #[test]
    fn a_metric_of_some_runs_has_a_column_or_is_named() {
        let place = tempfile::tempdir().unwrap();
        let run = |name: &str, rewards: usize| {
            let folder = place.path().join(name);
            fs::create_dir(&folder).unwrap();
            let means: String = (0..rewards).map(|i| format!("\"rewards/r{i}/mean\":1.0,")).collect();
            fs::write(RunFiles(&folder).config(), format!("learning_rate = {rewards}\n")).unwrap();
            fs::write(RunFiles(&folder).metrics(), format!("{{\"step\":1,{means}\"reward\":1.0,\"kl\":0.5}}\n")).unwrap();
            fs::write(RunFiles(&folder).events(), "{\"event\":\"started\",\"step\":0}\n").unwrap();
            folder
        };
        let compared = |runs: &[PathBuf]| {
            let comparison = RunComparison::load(runs).unwrap();
            let args = Args { runs: runs.to_vec(), metric: Vec::new(), output: None, json: false };
            let metrics = metrics(&args, &comparison).unwrap();
            (metrics.clone(), left_out(&comparison, &metrics))
        };
        let runs = [run("a", 4), run("b", 4), run("c", 1), run("d", 7)];
        let (metrics, left_out) = compared(&runs[..3]);
        assert_eq!(metrics, ["reward", "rewards/r0/mean", "rewards/r1/mean", "rewards/r2/mean", "rewards/r3/mean"]);
        assert_eq!(left_out, None);
        let said = compared(&runs).1.unwrap();
        assert_eq!(said, "the runs also logged rewards/r5/mean, rewards/r6/mean, which --metric NAME shows");
    }
}
