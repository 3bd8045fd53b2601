//! `rlhost compare`: compares runs in tables and on a page.

use super::columns::{print_columns, spread};
use super::failure::Failure;
use super::ui::Plugins;
use crate::config::{did_you_mean, printable, printable_path};
use crate::report::{self, Best, Comparison, Difference, Group};
use crate::run::RunFiles;
use anyhow::anyhow;
use rlhost_ui::FrozenPage;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Name of the page.
const PAGE: &str = "comparison.html";

/// Maximum length of a printed name or value, in bytes.
const SHOWN: usize = 60;

/// Most metrics in the table, unless they are named, and most settings in the name of a group.
const METRICS: usize = 3;
const IN_NAME: usize = 3;

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

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let comparison = Comparison::load(&args.runs).map_err(Failure::of)?;
    let metrics = metrics(args, &comparison).map_err(Failure::of)?;
    comparison.notes.iter().for_each(|note| tracing::warn!("{note}"));
    if args.json {
        say!("{}", line(&comparison, if args.metric.is_empty() { &comparison.metrics } else { &metrics }));
    } else {
        show(&comparison, &metrics);
    }
    if args.json && args.output.is_none() {
        return Ok(());
    }
    let path = args.output.clone().unwrap_or_else(|| page_path(&args.runs));
    let page = FrozenPage::from_comparison(&comparison, Plugins).map_err(Failure::of)?;
    page.write(&path).map_err(Failure::of)?;
    if !args.json {
        say!("\ncurves: {}", printable_path(&path));
    }
    Ok(())
}

/// Returns the default path of the page.
pub(super) fn page_path(runs: &[PathBuf]) -> PathBuf {
    match runs {
        [folder] if !RunFiles(folder).are_there() => folder.join(PAGE),
        _ => PathBuf::from(PAGE),
    }
}

/// Returns the metrics of the table.
fn metrics(args: &Args, comparison: &Comparison) -> anyhow::Result<Vec<String>> {
    if args.metric.is_empty() {
        let first = comparison.metrics.iter().take(comparison.key_metrics).filter(|name| Best::from_metric(name).is_some());
        return Ok(first.take(METRICS).cloned().collect());
    }
    let known = || comparison.metrics.iter().map(String::as_str);
    match args.metric.iter().find(|name| !known().any(|known| known == name.as_str())) {
        Some(unknown) => {
            Err(anyhow!("--metric {}: no run has logged it{}", printable(unknown, SHOWN), did_you_mean(unknown, known())))
        }
        None => Ok(args.metric.clone()),
    }
}

/// Prints the tables.
fn show(comparison: &Comparison, metrics: &[String]) {
    let dividing: Vec<&Difference> = comparison.differences.iter().filter(|difference| difference.divides).collect();
    // Otherwise the settings are columns of the other table.
    if dividing.len() > IN_NAME {
        let heading =
            std::iter::once("setting".to_owned()).chain(comparison.groups.iter().map(|group| printable(&group.name, SHOWN)));
        let row = |difference: &&Difference| {
            let values = difference.values.iter().map(|value| printable(value, SHOWN));
            std::iter::once(printable(&difference.key, SHOWN)).chain(values).collect()
        };
        let rows: Vec<Vec<String>> = std::iter::once(heading.collect()).chain(dividing.iter().map(row)).collect();
        print_columns(&rows);
        say!("");
    }
    let rows: Vec<Vec<String>> = std::iter::once(heading(&dividing, metrics))
        .chain(comparison.groups.iter().enumerate().map(|(i, group)| row(comparison, (i, group), &dividing, metrics)))
        .collect();
    print_columns(&rows);
    for difference in comparison.differences.iter().filter(|difference| !difference.divides) {
        tracing::info!(
            "{} differs too, which makes no other run: {}",
            printable(&difference.key, SHOWN),
            difference.values.join("; ")
        );
    }
}

fn heading(dividing: &[&Difference], metrics: &[String]) -> Vec<String> {
    let keys: Vec<String> = match dividing.len() {
        1..=IN_NAME => dividing.iter().map(|difference| printable(&difference.key, SHOWN)).collect(),
        _ => vec!["runs".to_owned()],
    };
    let values = metrics.iter().flat_map(|name| {
        let best = Best::from_metric(name).map(|_| "best".to_owned());
        std::iter::once(printable(name, SHOWN)).chain(best)
    });
    keys.into_iter().chain(["seeds", "steps", "state"].map(str::to_owned)).chain(values).collect()
}

fn row(comparison: &Comparison, (i, group): (usize, &Group), dividing: &[&Difference], metrics: &[String]) -> Vec<String> {
    let keys: Vec<String> = match dividing.len() {
        1..=IN_NAME => dividing.iter().map(|difference| printable(&difference.values[i], SHOWN)).collect(),
        _ => vec![printable(&group.name, SHOWN)],
    };
    let values = metrics.iter().flat_map(|name| {
        let best = Best::from_metric(name).map(|_| spread(comparison.best(group, name)));
        std::iter::once(spread(comparison.last(group, name))).chain(best)
    });
    let what = [comparison.seeds(group), comparison.steps(group), comparison.states(group)].map(|text| printable(&text, SHOWN));
    keys.into_iter().chain(what).chain(values).collect()
}

/// Returns everything of the tables as JSON.
fn line(comparison: &Comparison, metrics: &[String]) -> Value {
    let spread =
        |spread: Option<report::Spread>| spread.map(|spread| json!({ "mean": spread.mean, "deviation": spread.deviation }));
    let group = |(i, group): (usize, &Group)| {
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
