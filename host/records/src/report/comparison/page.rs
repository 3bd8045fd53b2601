//! Fills the template of a comparison.

use super::{ComparedRun, Comparison, Group, Spread};
use crate::config::now;
use crate::report::page::{DRAWING, LIBRARY, STYLE, environment, json, plain, safe};
use crate::report::{Error, words};
use minijinja::context;
use serde::Serialize;
use std::collections::BTreeMap;

/// The extension turns escaping on.
const NAME: &str = "compare.html";
const TEMPLATE: &str = include_str!("compare.html");
const SCRIPT: &str = include_str!("compare.js");

/// Most groups and metrics with curves.
const MOST_GROUPS: usize = 24;
const MOST_METRICS: usize = 400;

/// Most points of a curve, and of all curves together.
const MOST_POINTS: usize = 1000;
const MOST_ON_PAGE: usize = 1_000_000;

/// Colours of lines; further groups have dashes as well.
const COLOURS: usize = 8;

/// What the page draws.
#[derive(Serialize)]
struct Data<'a> {
    groups: Vec<&'a str>,
    charts: Vec<Chart>,
}

#[derive(Serialize)]
struct Chart {
    id: String,
    lines: Vec<Line>,
}

/// The curve of a group. Where what decides the metric changes, it has a gap.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Line {
    pub group: usize,
    pub x: Vec<f64>,
    pub y: Vec<Option<f64>>,
    /// The least and the greatest value of the runs, or of the points that one stands for.
    pub lo: Vec<Option<f64>>,
    pub hi: Vec<Option<f64>>,
}

#[derive(Serialize)]
struct ChartView<'a> {
    id: String,
    title: &'a str,
    lines: Vec<LineView<'a>>,
}

#[derive(Serialize)]
struct LineView<'a> {
    group: usize,
    label: &'a str,
    last: String,
}

#[derive(Serialize)]
struct GroupView<'a> {
    name: &'a str,
    /// The number of its colour, if it has a curve.
    colour: Option<usize>,
    is_dashed: bool,
    runs: Vec<&'a str>,
    seeds: String,
    steps: String,
    state: String,
    values: Vec<[String; 2]>,
}

/// Renders the page of a comparison.
pub(super) fn render(comparison: &Comparison) -> Result<String, Error> {
    let Comparison { groups, metrics, key_metrics, .. } = comparison;
    let drawn = &groups[..groups.len().min(MOST_GROUPS)];
    let shown = &metrics[..metrics.len().min(MOST_METRICS)];
    let points = (MOST_ON_PAGE / (3 * drawn.len() * shown.len()).max(1)).clamp(20, MOST_POINTS);
    let chart = |(i, metric): (usize, &String)| {
        let curve = |(at, group): (usize, &Group)| {
            let line = curve(comparison, group, metric, points);
            (!line.x.is_empty()).then_some(Line { group: at, ..line })
        };
        Chart { id: format!("chart-{i}"), lines: drawn.iter().enumerate().filter_map(curve).collect() }
    };
    let charts: Vec<Chart> = shown.iter().enumerate().map(chart).collect();
    let views: Vec<ChartView<'_>> =
        charts.iter().zip(shown).map(|(chart, metric)| chart_view(comparison, chart, metric)).collect();
    let (key, others) = views.split_at(views.len().min(*key_metrics));
    let with_values: Vec<&String> = metrics.iter().take(*key_metrics).collect();
    let data = Data { groups: groups.iter().map(|group| group.name.as_str()).collect(), charts };
    let page = context! {
        style => safe(STYLE),
        library => safe(LIBRARY),
        drawing => safe(DRAWING),
        script => safe(SCRIPT),
        data => safe(&json(&data)?),
        runs => comparison.runs.len(),
        groups => plain(group_views(comparison, &with_values)),
        has_seeds => groups.iter().any(|group| group.runs.len() > 1),
        differences => plain(comparison.differences.iter().map(|d| (&d.key, &d.values)).collect::<Vec<_>>()),
        metrics => plain(&with_values),
        key_charts => plain(key),
        other_charts => plain(others),
        omitted_groups => groups.len() - drawn.len(),
        omitted_metrics => metrics.len() - shown.len(),
        notes => plain(&comparison.notes),
        written => words::moment(now()),
        version => env!("CARGO_PKG_VERSION"),
    };
    Ok(environment(NAME, TEMPLATE)?.get_template(NAME)?.render(page)?)
}

fn chart_view<'a>(comparison: &'a Comparison, chart: &Chart, metric: &'a str) -> ChartView<'a> {
    let line = |line: &Line| {
        let group = &comparison.groups[line.group];
        LineView { group: line.group, label: &group.name, last: shown(comparison.last(group, metric)) }
    };
    ChartView { id: chart.id.clone(), title: metric, lines: chart.lines.iter().map(line).collect() }
}

fn group_views<'a>(comparison: &'a Comparison, metrics: &[&String]) -> Vec<GroupView<'a>> {
    let view = |(i, group): (usize, &'a Group)| GroupView {
        name: &group.name,
        colour: (i < MOST_GROUPS).then_some(i % COLOURS + 1),
        is_dashed: i >= COLOURS,
        runs: group.runs.iter().map(|&run| comparison.runs[run].name.as_str()).collect(),
        seeds: comparison.seeds(group),
        steps: comparison.steps(group),
        state: comparison.states(group),
        values: metrics
            .iter()
            .map(|metric| [comparison.last(group, metric), comparison.best(group, metric)].map(shown))
            .collect(),
    };
    comparison.groups.iter().enumerate().map(view).collect()
}

fn shown(spread: Option<Spread>) -> String {
    match spread {
        None => String::new(),
        Some(Spread { mean, deviation: None }) => words::number(mean),
        Some(Spread { mean, deviation: Some(deviation) }) => {
            format!("{} \u{b1} {}", words::number(mean), words::number(deviation))
        }
    }
}

/// Values of a group's runs at a step, or at several.
#[derive(Clone, Copy)]
struct Point {
    step: u64,
    /// Number of changes of what decides the metric before it.
    part: usize,
    sum: f64,
    count: usize,
    least: f64,
    greatest: f64,
}

impl Point {
    fn with(self, other: Self) -> Self {
        Self {
            step: other.step,
            part: other.part,
            sum: self.sum + other.sum,
            count: self.count + other.count,
            least: self.least.min(other.least),
            greatest: self.greatest.max(other.greatest),
        }
    }
}

/// Returns the mean of a group's runs over the steps, of at most about so many points.
pub(super) fn curve(comparison: &Comparison, group: &Group, metric: &str, most: usize) -> Line {
    let runs: Vec<&ComparedRun> = group.runs.iter().map(|&i| &comparison.runs[i]).collect();
    let mut points: BTreeMap<u64, Point> = BTreeMap::new();
    let breaks: Vec<u64> = runs.iter().flat_map(|run| run.breaks(metric)).collect();
    for run in &runs {
        for &(step, value) in run.series.get(metric).into_iter().flatten() {
            let part = breaks.iter().filter(|change| **change < step).count();
            let own = Point { step, part, sum: value, count: 1, least: value, greatest: value };
            points.entry(step).and_modify(|point| *point = point.with(own)).or_insert(own);
        }
    }
    let per_point = points.len().div_ceil(most).max(1);
    let points: Vec<Point> = points.into_values().collect();
    let mut line = Line::default();
    let mut before = None::<u64>;
    for part in points.chunk_by(|a, b| a.part == b.part) {
        for (i, bucket) in part.chunks(per_point).enumerate() {
            let Some(point) = bucket.iter().copied().reduce(Point::with) else { continue };
            if let Some(before) = before.filter(|_| i == 0) {
                // Between the last step of one version and the first of the next.
                line.push(f64::midpoint(before as f64, bucket[0].step as f64), None);
            }
            line.push(point.step as f64, Some(point));
            before = Some(point.step);
        }
    }
    // Without a band, its edges would be as long as the curve for nothing.
    if line.lo == line.y && line.hi == line.y {
        (line.lo, line.hi) = (Vec::new(), Vec::new());
    }
    line
}

impl Line {
    fn push(&mut self, x: f64, point: Option<Point>) {
        self.x.push(x);
        self.y.push(point.map(|point| rounded(point.sum / point.count as f64)));
        self.lo.push(point.map(|point| rounded(point.least)));
        self.hi.push(point.map(|point| rounded(point.greatest)));
    }
}

/// Rounds to the digits that a chart can show.
fn rounded(v: f64) -> f64 {
    format!("{v:.6e}").parse().unwrap_or(v)
}
