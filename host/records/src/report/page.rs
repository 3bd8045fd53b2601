//! Fills the template, in the reader's words.

use super::charts::{Chart, Kind, Section};
use super::eras::{Era, Eras};
use super::figures::{Figures, Rows, Series};
use super::story::{Mark, State, Version};
use super::{Error, Run, charts, configuration, evaluations, occurrences, words};
use crate::config::now;
use crate::diagnosis::Held;
use crate::run::EventKind;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context, escape_formatter};
use serde::Serialize;
use std::borrow::Cow;
use std::path::Path;

/// The extension turns escaping on.
const NAME: &str = "report.html";
const TEMPLATE: &str = include_str!("report.html");
pub(super) const STYLE: &str = concat!(include_str!("vendor/uplot/uPlot.min.css"), "\n", include_str!("report.css"));
pub(super) const LIBRARY: &str = super::CHART_LIBRARY;
pub(super) const DRAWING: &str = include_str!("drawing.js");
const SCRIPT: &str = include_str!("report.js");

/// Metrics at the top, in this order, if the run has them.
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

/// The data for drawing the charts.
#[derive(Serialize)]
struct Data<'a> {
    steps: &'a [u64],
    /// The ends of the axis.
    from: u64,
    to: u64,
    per_point: usize,
    /// Whether each point has metrics of training (1), of an evaluation (2), or both (3).
    rows: Vec<u8>,
    /// The points that no mean may cross, since a plugin was swapped there.
    breaks: Vec<usize>,
    series: &'a [Series],
    charts: Vec<&'a Chart>,
    marks: &'a [Mark],
    checkpoints: &'a [u64],
}

#[derive(Serialize)]
struct Fact {
    name: &'static str,
    text: String,
    /// Longer text, shown on hover.
    title: String,
}

#[derive(Serialize)]
struct KeyFigure {
    label: &'static str,
    first: String,
    last: String,
    /// The step of the first value, if a swap came before it, so that it is not the run's first.
    since: Option<String>,
}

#[derive(Serialize)]
struct SectionView<'a> {
    title: &'a str,
    id: &'a str,
    charts: Vec<ChartView<'a>>,
    zero: Vec<ChartView<'a>>,
    /// The titles of the charts in `zero`.
    zeros: String,
}

#[derive(Serialize)]
struct ChartView<'a> {
    id: &'a str,
    title: &'a str,
    note: &'a str,
    lines: Vec<LineView<'a>>,
    eras: &'a [Era],
}

#[derive(Serialize)]
struct LineView<'a> {
    label: &'a str,
    evaluation: bool,
    last: String,
}

#[derive(Serialize)]
struct FigureRow<'a> {
    name: &'a str,
    cells: Option<[String; 4]>,
    steps: String,
}

#[derive(Serialize)]
struct VersionRow<'a> {
    plugin: &'a str,
    /// Which of the plugin's versions it is, from 1.
    number: usize,
    role: &'a str,
    version: &'a str,
    /// What its settings are, or how they differ from those of the version before.
    settings: &'a str,
    hash: &'a str,
    short: String,
    since: String,
    until: String,
    how: &'a str,
}

/// Renders the page of a run.
pub(super) fn render(run: &Run) -> Result<String, Error> {
    let eras = Eras::new(&run.figures, &run.story);
    let thinned = run.figures.thinned(&eras.all());
    let drawn = Eras::new(&thinned, &run.story);
    let weights = weights(run);
    let (sections, others) = charts::arrange(&thinned, &drawn, &weights);
    let data = Data {
        steps: &thinned.steps,
        from: run.story.first().and_then(|e| e.step).unwrap_or(0).min(run.figures.steps.first().copied().unwrap_or(0)),
        to: run.figures.steps.last().copied().max(run.story.last_step()).unwrap_or(0),
        per_point: thinned.per_point,
        rows: thinned.rows.iter().map(|rows: &Rows| u8::from(rows.train) + 2 * u8::from(rows.evaluation)).collect(),
        breaks: drawn.all(),
        series: &thinned.series,
        charts: sections.iter().flat_map(|s| s.charts.iter().chain(&s.zero)).chain(&others).collect(),
        marks: &run.story.marks,
        checkpoints: &run.story.checkpoints,
    };
    let step = |step: Option<&u64>| step.map_or_else(String::new, |step| words::count(*step));
    let state = run.story.state(run.at_work, run.figures.steps.last().copied());
    let page = context! {
        style => safe(STYLE),
        library => safe(LIBRARY),
        drawing => safe(DRAWING),
        script => safe(SCRIPT),
        data => safe(&json(&data)?),
        name => run.name.as_str(),
        state => plain(&state),
        facts => plain(facts(run, &state)),
        rewards => plain(weights.iter().map(|(name, weight)| (name, words::number(*weight))).collect::<Vec<_>>()),
        notes => plain(&run.notes),
        key_figures => plain(key_figures(&run.figures, &eras)),
        diagnosis => plain(diagnosis(run)),
        marks => plain(&run.story.marks),
        checkpoints => run.story.checkpoints.len(),
        logged_from => step(run.figures.steps.first()),
        logged_to => step(run.figures.steps.last()),
        per_point => thinned.per_point,
        logged => words::count(run.figures.steps.len() as u64),
        sections => plain(sections.iter().map(|s| section_view(s, &run.figures)).collect::<Vec<_>>()),
        evaluations => plain(evaluations::rows(&run.figures, &eras)),
        others => plain(chart_views(&others, &run.figures)),
        samples => plain(&run.samples),
        versions => plain(run.story.versions.iter().map(version_row).collect::<Vec<_>>()),
        figures => plain(figure_rows(&run.figures, &eras)),
        events => plain(occurrences::rows(&run.story.events)),
        config => plain(configuration::configuration(run)),
        written => words::moment(now()),
        version => env!("CARGO_PKG_VERSION"),
    };
    Ok(environment(NAME, TEMPLATE)?.get_template(NAME)?.render(page)?)
}

/// Creates an environment with one page's template, whose values are escaped and visible.
pub(super) fn environment(name: &'static str, template: &'static str) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(|out, state, value| match value.as_str().filter(|_| !value.is_safe()).map(words::visible) {
        Some(Cow::Owned(shown)) => escape_formatter(out, state, &Value::from(shown)),
        _ => escape_formatter(out, state, value),
    });
    environment.add_template("head.html", include_str!("head.html"))?;
    environment.add_template(name, template)?;
    Ok(environment)
}

/// Returns a value that the template escapes.
pub(super) fn plain(value: impl Serialize) -> Value {
    Value::from(Serde(value))
}

/// Returns text that goes into the page unescaped.
pub(super) fn safe(text: &str) -> Value {
    Value::from_safe_string(text.to_owned())
}

/// Returns JSON that can't end its enclosing element, with visible texts.
pub(super) fn json(data: &impl Serialize) -> Result<String, Error> {
    let mut data =
        serde_json::to_value(data).map_err(|e| minijinja::Error::new(minijinja::ErrorKind::BadSerialization, e.to_string()))?;
    show(&mut data);
    Ok(data.to_string().replace('<', "\\u003c"))
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
fn setting<'a>(run: &'a Run, key: &str) -> Option<&'a str> {
    run.settings.get(key).and_then(toml::Value::as_str)
}

/// Returns a plugin's name in the run from its path.
fn plugin_name(path: &str) -> &str {
    let file = last_part(path);
    file.strip_suffix(".wasm").unwrap_or(file)
}

fn last_part(path: &str) -> &str {
    path.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or(path)
}

/// Returns the rewards with their current weights.
fn weights(run: &Run) -> Vec<(String, f64)> {
    let plugins = run.settings.get("plugin").and_then(toml::Value::as_array).into_iter().flatten();
    let weight = |plugin: &toml::Value| {
        let weight = plugin.get("weight");
        weight.and_then(|w| w.as_float().or_else(|| w.as_integer().map(|w| w as f64))).unwrap_or(1.0)
    };
    configuration::names(run, "plugin").into_iter().zip(plugins.map(weight)).collect()
}

fn facts(run: &Run, state: &State) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut fact = |name, text: String, title: &str| {
        if !text.is_empty() {
            facts.push(Fact { name, text, title: title.to_owned() });
        }
    };
    let beginning = run.story.beginning();
    let algorithm = setting(run, "algorithm").unwrap_or_default();
    fact("Algorithm", plugin_name(algorithm).to_owned(), algorithm);
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

/// A finding, as shown to the reader.
#[derive(Serialize)]
struct FindingView<'a> {
    held: &'a Held,
    when: String,
}

/// The output of `rlhost diagnose` for the run.
#[derive(Serialize)]
struct DiagnosisView<'a> {
    title: &'static str,
    findings: Vec<FindingView<'a>>,
    enough: bool,
    rows: String,
    last_step: String,
}

fn diagnosis(run: &Run) -> DiagnosisView<'_> {
    let when = |held: &Held| match held.until {
        None => format!("since step {}", words::count(held.since)),
        Some(until) => format!("from step {} to step {}", words::count(held.since), words::count(until)),
    };
    let findings = run.diagnosis.findings.iter().map(|held| FindingView { held, when: when(held) });
    let found = &run.diagnosis;
    let title = match found.findings.first() {
        // Findings that hold come first.
        Some(held) if held.until.is_none() => "Why does it not learn?",
        Some(_) => "Past signs of trouble",
        None => "Diagnosis",
    };
    let (rows, last_step) = (words::counted(found.rows, "row"), words::count(found.last_step));
    DiagnosisView { title, findings: findings.collect(), enough: found.enough, rows, last_step }
}

/// Says how many checkpoints were written and kept.
fn checkpoints(run: &Run) -> String {
    if run.story.checkpoints.is_empty() {
        return String::new();
    }
    let (written, kept) = (run.story.checkpoints.len() as u64, run.kept.len() as u64);
    let count = if kept < written { format!("{kept} of {written} kept") } else { words::count(written) };
    run.kept.last().map_or(count.clone(), |last| format!("{count}, the last at step {}", words::count(*last)))
}

fn key_figures(figures: &Figures, eras: &Eras<'_>) -> Vec<KeyFigure> {
    let key = |(name, label): &(&str, &'static str)| {
        let begin = eras.newest(name);
        let series = &figures.series[figures.place(name)?];
        // Right after a swap, there is only what was logged before it.
        let newest = figures.summary(series, begin..figures.steps.len());
        let is_newest = newest.is_some();
        let summary = newest.or_else(|| figures.summary(series, 0..figures.steps.len()))?;
        let since = (begin > 0 && is_newest).then(|| words::count(summary.first.0));
        Some(KeyFigure { label, first: words::number(summary.first.1), last: words::number(summary.last.1), since })
    };
    // Two algorithms' names for the same thing may both be present.
    let mut keys: Vec<KeyFigure> = Vec::new();
    for key in KEY_FIGURES.iter().filter_map(key) {
        if keys.len() < MOST_KEY_FIGURES && keys.iter().all(|k| k.label != key.label) {
            keys.push(key);
        }
    }
    keys
}

fn section_view<'a>(section: &'a Section, figures: &Figures) -> SectionView<'a> {
    let zeros = section.zero.iter().map(|chart| chart.title.as_str()).collect::<Vec<_>>().join(", ");
    let [charts, zero] = [&section.charts, &section.zero].map(|charts| chart_views(charts, figures));
    SectionView { title: section.title, id: section.id, charts, zero, zeros }
}

fn chart_views<'a>(charts: &'a [Chart], figures: &Figures) -> Vec<ChartView<'a>> {
    charts.iter().map(|chart| chart_view(chart, figures)).collect()
}

fn chart_view<'a>(chart: &'a Chart, figures: &Figures) -> ChartView<'a> {
    let last = |line: &charts::Line| figures.series[line.series].values.iter().rev().flatten().next().copied();
    let whole = chart.lines.first().and_then(last).filter(|_| chart.kind == Kind::Stack);
    let value = |(i, line): (usize, &charts::Line)| match (last(line), whole) {
        (Some(part), Some(whole)) if i > 0 && whole > 0.0 => {
            format!("{} ({:.0}\u{a0}%)", words::number(part), 100.0 * part / whole)
        }
        (Some(value), _) => words::number(value),
        (None, _) => "\u{2013}".to_owned(),
    };
    let views = chart.lines.iter().enumerate();
    let views = views.map(|(i, line)| LineView { label: &line.label, evaluation: line.evaluation, last: value((i, line)) });
    let lines = views.collect();
    ChartView { id: &chart.id, title: &chart.title, note: &chart.note, lines, eras: &chart.eras }
}

/// Returns a row for each metric, or for each stretch of it between swaps.
fn figure_rows<'a>(figures: &'a Figures, eras: &Eras<'_>) -> Vec<FigureRow<'a>> {
    let row = |series: &'a Series, part| {
        let summary = figures.summary(series, part);
        let cells = summary.as_ref().map(|s| [s.first.1, s.last.1, s.least, s.greatest].map(words::number));
        let steps = summary.map(|s| format!("{} to {}", words::count(s.first.0), words::count(s.last.0))).unwrap_or_default();
        FigureRow { name: &series.name, cells, steps }
    };
    let mut rows = Vec::new();
    for series in &figures.series {
        let starts = eras.starts(&series.name);
        let begins = std::iter::once(0).chain(starts.iter().copied());
        let ends = starts.iter().copied().chain([figures.steps.len()]);
        let parts: Vec<FigureRow<'_>> = begins.zip(ends).map(|(begin, end)| row(series, begin..end)).collect();
        let any = parts.iter().any(|row| row.cells.is_some());
        rows.extend(parts.into_iter().enumerate().filter(|(i, row)| row.cells.is_some() || !any && *i == 0).map(|(_, row)| row));
    }
    // A stable sort, which keeps the order of the stretches.
    rows.sort_by_key(|row| row.name);
    rows
}

fn version_row(v: &Version) -> VersionRow<'_> {
    VersionRow {
        plugin: &v.plugin,
        role: &v.role,
        number: v.number,
        version: if v.version.is_empty() { "\u{2013}" } else { &v.version },
        settings: v.settings.as_str(),
        hash: &v.hash,
        short: words::hash(&v.hash),
        since: words::count(v.since),
        until: v.until.map_or_else(|| "the end".to_owned(), words::count),
        how: v.how,
    }
}
