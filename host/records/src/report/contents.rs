//! The contents of a report except its curves and completions, as texts for the reader.

use super::charts::{self, Charts};
use super::configuration::ConfigListing;
use super::eras::Eras;
use super::occurrences::Occurrence;
use super::series::{MetricSeries, ReportMetrics};
use super::timeline::{ChartMark, RunStateText, VersionPeriod};
use super::{ReportSource, configuration, evaluations, occurrences, words};
use crate::config::{PluginEntry, now};
use crate::run::EventKind;
use serde::Serialize;
use std::borrow::Cow;
use std::path::Path;

/// Metrics at the top of the report, in this order, if the run has them.
pub(super) const KEY_FIGURES: [(&str, &str); 14] = [
    ("reward", "reward"),
    ("objective/scores", "score"),
    ("rewards/accuracies", "accuracy"),
    ("rewards/margins", "margin"),
    ("completions/mean_length", "completion length"),
    ("completions/clipped_ratio", "completions cut off"),
    ("kl", "KL"),
    ("objective/kl", "KL per completion"),
    ("loss", "loss"),
    ("entropy", "entropy"),
    ("policy/entropy_avg", "entropy"),
    ("grad_norm", "gradient norm"),
    ("step_time", "seconds per step"),
    ("perf/throughput", "tokens per second"),
];
const MOST_KEY_FIGURES: usize = 8;

/// A report of a run, without its curves and completions. [`visible_json`] converts its parts to JSON.
#[derive(Debug, Serialize)]
pub struct RunReport {
    /// Summary of the run, with the key figures.
    pub story: ReportSummary,
    /// Charts with their metrics.
    pub charts: Charts,
    /// First, last, minimum and maximum value of each metric.
    pub metrics: Vec<FigureRow>,
    /// Events, with repetitions merged.
    pub events: Vec<Occurrence>,
    /// Lines of config.toml.
    pub configuration: ConfigListing,
}

/// A summary of a run: its state, key figures, evaluations and plugin versions.
#[derive(Debug, Serialize)]
pub struct ReportSummary {
    /// State of the run.
    pub state: RunStateText,
    /// Facts about the run, such as its model.
    pub facts: Vec<Fact>,
    /// Rewards with their weights.
    pub rewards: Vec<(String, String)>,
    /// Parts that could not be read.
    pub notes: Vec<String>,
    /// Most important figures.
    pub key_figures: Vec<KeyFigure>,
    /// Range and number of the steps with metrics.
    pub logged: Option<LoggedSteps>,
    /// Events that charts mark.
    pub marks: Vec<ChartMark>,
    /// Steps at which a checkpoint was written.
    pub checkpoints: Vec<u64>,
    /// First and last evaluation.
    pub evaluations: Vec<evaluations::EvaluationRow>,
    /// Versions of plugins that were in use.
    pub versions: Vec<VersionRow>,
}

/// The steps with metrics.
#[derive(Debug, Serialize)]
pub struct LoggedSteps {
    /// First step.
    pub from: u64,
    /// Last step.
    pub to: u64,
    /// Number of steps.
    pub rows: usize,
}

/// A fact about a run, such as its model.
#[derive(Debug, Serialize)]
pub struct Fact {
    /// Name of the fact.
    pub name: &'static str,
    /// Short text.
    pub text: String,
    /// Full text.
    pub title: String,
}

/// A key figure.
#[derive(Debug, Serialize)]
pub struct KeyFigure {
    /// Label of the figure.
    pub label: &'static str,
    /// Name of the metric.
    pub metric: &'static str,
    /// First value.
    pub first: String,
    /// Last value.
    pub last: String,
    /// Step of the first value, if a swap came before it, which makes it a later value than the run's first.
    pub since: Option<String>,
}

/// A row of the table of all metrics: one for each era between swaps that the metric depends on.
#[derive(Debug, Serialize)]
pub struct FigureRow {
    /// Name of the metric.
    pub name: String,
    /// First, last, minimum and maximum value; `None` if the metric was never a finite number.
    pub values: Option<[f64; 4]>,
    /// Steps of the first and the last value.
    pub steps: Option<[u64; 2]>,
}

/// A version of a plugin that was in use.
#[derive(Debug, Serialize)]
pub struct VersionRow {
    /// Name of the plugin.
    pub plugin: String,
    /// Role of the plugin.
    pub role: String,
    /// Number of this version among the plugin's, from 1.
    pub number: usize,
    /// Version that the plugin gives itself.
    pub version: String,
    /// Settings, or how they differ from those of the previous version.
    pub settings: String,
    /// Hash of the plugin's bytes.
    pub hash: String,
    /// First digits of the hash.
    pub short: String,
    /// Step from which the version was in use.
    pub since: u64,
    /// Step at which another version replaced it.
    pub until: Option<u64>,
    /// How the version came into use.
    pub how: &'static str,
}

impl RunReport {
    /// Builds the report from what was read of a run.
    pub(super) fn new(run: ReportSource) -> Self {
        let eras = Eras::new(&run.figures, &run.story);
        let weights = weights(&run);
        let state = run.story.state(run.at_work, run.figures.steps.last().copied());
        let steps = &run.figures.steps;
        let logged = steps.first().zip(steps.last()).map(|(from, to)| LoggedSteps { from: *from, to: *to, rows: steps.len() });
        let charts = charts::arrange(&run.figures, &eras, &weights);
        let metrics = figure_rows(&run.figures, &eras);
        let events = occurrences::rows(&run.story.events);
        let configuration = configuration::configuration(&run);
        let story = ReportSummary {
            facts: facts(&run, &state),
            state,
            rewards: weights.into_iter().map(|(name, weight)| (name, words::number(weight))).collect(),
            key_figures: key_figures(&run.figures, &eras),
            logged,
            evaluations: evaluations::rows(&run.figures, &eras),
            versions: run.story.versions.iter().map(version_row).collect(),
            notes: run.notes,
            marks: run.story.marks,
            checkpoints: run.story.checkpoints,
        };
        Self { story, charts, metrics, events, configuration }
    }
}

/// Converts a part of a report, or something else that is shown, to JSON with invisible characters made visible.
#[must_use]
pub fn visible_json(part: &impl Serialize) -> serde_json::Value {
    // Keys are field names, so only values need this.
    let mut value = serde_json::to_value(part).unwrap_or_default();
    show(&mut value);
    value
}

/// Makes the texts of a value visible.
fn show(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => {
            if let Cow::Owned(shown) = words::visible(text) {
                *text = shown;
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(show),
        serde_json::Value::Object(entries) => entries.values_mut().for_each(show),
        _ => {}
    }
}

/// Returns a setting that is a string.
fn setting<'a>(run: &'a ReportSource, key: &str) -> Option<&'a str> {
    run.settings.get(key).and_then(toml::Value::as_str)
}

fn last_part(path: &str) -> &str {
    path.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or(path)
}

/// Returns the rewards with their current weights.
fn weights(run: &ReportSource) -> Vec<(String, f64)> {
    let plugins = run.settings.get("plugin").and_then(toml::Value::as_array).into_iter().flatten();
    let weight = |plugin: &toml::Value| {
        let weight = plugin.get("weight");
        weight.and_then(|w| w.as_float().or_else(|| w.as_integer().map(|w| w as f64))).unwrap_or(1.0)
    };
    configuration::names(run, "plugin").into_iter().zip(plugins.map(weight)).collect()
}

fn facts(run: &ReportSource, state: &RunStateText) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut fact = |name, text: String, title: &str| {
        if !text.is_empty() {
            facts.push(Fact { name, text, title: title.to_owned() });
        }
    };
    let beginning = run.story.beginning();
    let algorithm = setting(run, "algorithm").unwrap_or_default();
    fact("Algorithm", PluginEntry::new(algorithm.to_owned()).name().to_owned(), algorithm);
    let model = beginning.map(|e| e.text("model")).filter(|m| !m.is_empty()).or(setting(run, "model")).unwrap_or_default();
    let made = if run.settings.contains_key("model") { "" } else { " (built-in)" };
    fact("Model", if model.is_empty() { String::new() } else { format!("{}{made}", last_part(model)) }, model);
    let dataset = setting(run, "dataset");
    let built_in = if run.settings.is_empty() { "" } else { "built-in forum posts" };
    fact("Dataset", dataset.map_or(built_in, last_part).to_owned(), dataset.unwrap_or_default());
    let done = run.figures.steps.last().copied().max(run.story.last_step()).unwrap_or(0);
    let planned = beginning.and_then(|e| e.number("max_steps")).map_or_else(String::new, |n| format!(" of {}", words::number(n)));
    fact("Steps", format!("{}{planned}", words::count(done)), "");
    let now = (state.word == "running").then(now);
    fact("Duration", words::duration(run.story.seconds(now, run.figures.values("time").last().copied().flatten())), "");
    let first = run.story.first();
    fact("Started", first.and_then(|e| e.time).map(words::moment).unwrap_or_default(), "");
    let tokens = run.figures.values("num_tokens").iter().rev().flatten().next();
    fact(
        "Tokens",
        tokens.map(|n| words::number(*n)).unwrap_or_default(),
        "tokens trained on; a prompt counts once per completion",
    );
    fact("Checkpoints", checkpoints(run), "");
    let seed = run.settings.get("seed").map(ToString::to_string).unwrap_or_default();
    fact("Seed", seed, "");
    if let Some(fork) = first.filter(|e| e.kind == Some(EventKind::Forked)) {
        let from = Path::new(fork.text("checkpoint"));
        let parts: Vec<_> = from.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
        fact("Forked from", parts.into_iter().rev().collect::<Vec<_>>().join("/"), fork.text("checkpoint"));
    }
    facts
}

/// Describes how many checkpoints were written and kept.
fn checkpoints(run: &ReportSource) -> String {
    if run.story.checkpoints.is_empty() {
        return String::new();
    }
    let (written, kept) = (run.story.checkpoints.len() as u64, run.kept.len() as u64);
    let count = if kept < written { format!("{kept} of {written} kept") } else { words::count(written) };
    run.kept.last().map_or(count.clone(), |last| format!("{count}, the last at step {}", words::count(*last)))
}

fn key_figures(figures: &ReportMetrics, eras: &Eras<'_>) -> Vec<KeyFigure> {
    let key = |(name, label): &(&'static str, &'static str)| {
        let begin = eras.newest(name);
        let series = &figures.series[figures.place(name)?];
        // Right after a swap, only values from before it exist.
        let newest = figures.summary(series, begin..figures.steps.len());
        let is_newest = newest.is_some();
        let summary = newest.or_else(|| figures.summary(series, 0..figures.steps.len()))?;
        let since = (begin > 0 && is_newest).then(|| words::count(summary.first.0));
        Some(KeyFigure { label, metric: name, first: words::number(summary.first.1), last: words::number(summary.last.1), since })
    };
    // Two algorithms' names for the same metric may both be present.
    let mut keys: Vec<KeyFigure> = Vec::new();
    for key in KEY_FIGURES.iter().filter_map(key) {
        if keys.len() < MOST_KEY_FIGURES && keys.iter().all(|k| k.label != key.label) {
            keys.push(key);
        }
    }
    keys
}

/// Returns a row for each metric, or for each of its eras between swaps.
fn figure_rows(figures: &ReportMetrics, eras: &Eras<'_>) -> Vec<FigureRow> {
    let row = |series: &MetricSeries, part| {
        let summary = figures.summary(series, part);
        let values = summary.as_ref().map(|s| [s.first.1, s.last.1, s.least, s.greatest]);
        FigureRow { name: series.shown(), values, steps: summary.map(|s| [s.first.0, s.last.0]) }
    };
    let mut rows = Vec::new();
    for series in &figures.series {
        let starts = eras.starts(&series.name);
        let begins = std::iter::once(0).chain(starts.iter().copied());
        let ends = starts.iter().copied().chain([figures.steps.len()]);
        let parts: Vec<FigureRow> = begins.zip(ends).map(|(begin, end)| row(series, begin..end)).collect();
        let any = parts.iter().any(|row| row.values.is_some());
        rows.extend(parts.into_iter().enumerate().filter(|(i, row)| row.values.is_some() || !any && *i == 0).map(|(_, row)| row));
    }
    // A stable sort, which keeps the order of the eras.
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn version_row(v: &VersionPeriod) -> VersionRow {
    VersionRow {
        plugin: v.plugin.clone(),
        role: v.role.clone(),
        number: v.number,
        version: v.version.clone(),
        settings: v.settings.clone(),
        hash: v.hash.clone(),
        short: words::hash(&v.hash),
        since: v.since,
        until: v.until,
        how: v.how,
    }
}
