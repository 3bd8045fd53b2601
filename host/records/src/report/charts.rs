//! Arranges metrics into charts. Metrics without a fixed place go into a section of their own.

use super::eras::{Era, Eras};
use super::series::{MetricSeries, ReportMetrics};
use super::words;
use serde::Serialize;
use std::collections::BTreeSet;

/// Minimum share of a step's time for a part to get its own layer.
const SMALL_PART: f64 = 0.01;

/// Label of an evaluation's lines.
const EVALUATION: &str = "evaluation";

/// Heading of metrics without a fixed place.
const OTHERS: &str = "Other metrics";

/// Prefix of the names of evaluation metrics.
const EVALUATED: &str = "eval_";

/// The charts of a run or a comparison.
#[derive(Debug, Default, Serialize)]
pub struct Charts {
    /// Charts by topic.
    pub sections: Vec<Section>,
    /// A chart for each other metric. Those that are 0 in every step are in a separate section.
    pub others: Vec<Chart>,
}

/// Charts under one heading.
#[derive(Debug, Serialize)]
pub struct Section {
    /// Heading of the section.
    pub title: &'static str,
    /// Charts of the section.
    pub charts: Vec<Chart>,
    /// Charts of metrics that are 0 in every step.
    pub zero: Vec<Chart>,
}

/// A chart.
#[derive(Debug, Serialize)]
pub struct Chart {
    /// Heading of the chart.
    pub title: String,
    /// Note next to the heading.
    pub note: String,
    /// Kind of drawing.
    pub kind: ChartKind,
    /// Lines of the chart.
    pub lines: Vec<ChartLine>,
    /// Eras between swaps of rewards; empty if there is only one.
    pub eras: Vec<Era>,
}

/// The kind of a chart's drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChartKind {
    /// Lines.
    Lines,
    /// Lines of values between 0 and 1.
    Share,
    /// The total as a line, and its parts as stacked layers.
    Stack,
}

/// A line of a chart. Metrics are given by their names in curves.
#[derive(Clone, Debug, Serialize)]
pub struct ChartLine {
    /// Label of the line.
    pub label: String,
    /// Metric that the line shows.
    pub metric: String,
    #[serde(skip)]
    series: usize,
    /// Index of the line's colour.
    pub colour: usize,
    /// Whether the line is of evaluations, which only some steps have.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub evaluation: bool,
    /// Steps after which the line breaks because a plugin was swapped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<u64>,
    /// Metric with the standard deviation, drawn on both sides of the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around: Option<String>,
    /// Metrics with the minimum and the maximum of the values that the line averages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<[String; 2]>,
}

/// The band around a chart's first line.
#[derive(Clone, Copy)]
enum Band {
    None,
    Around(&'static str),
    Between(&'static str, &'static str),
}

/// The layout of a chart for metrics with fixed names.
struct ChartPlan {
    title: &'static str,
    kind: ChartKind,
    lines: &'static [(&'static str, &'static str)],
    band: Band,
}

const fn lines(title: &'static str, lines: &'static [(&'static str, &'static str)]) -> ChartPlan {
    ChartPlan { title, kind: ChartKind::Lines, lines, band: Band::None }
}

const fn share(title: &'static str, lines: &'static [(&'static str, &'static str)]) -> ChartPlan {
    ChartPlan { title, kind: ChartKind::Share, lines, band: Band::None }
}

const fn within(plan: ChartPlan, band: Band) -> ChartPlan {
    ChartPlan { band, ..plan }
}

const REWARD: &[ChartPlan] = &[
    within(lines("Reward", &[("reward", "reward")]), Band::Around("reward_std")),
    lines("Score before and after the KL penalty", &[("before", "objective/scores"), ("after", "objective/rlhf_reward")]),
    share("Groups with equal rewards", &[("share", "frac_reward_zero_std")]),
];

const PREFERENCES: &[ChartPlan] = &[
    share("Accuracy", &[("chosen preferred", "rewards/accuracies")]),
    lines("Margin", &[("chosen \u{2212} rejected", "rewards/margins")]),
    lines("Implicit rewards", &[("chosen", "rewards/chosen"), ("rejected", "rewards/rejected")]),
    lines("Log-probabilities of answers", &[("chosen", "logps/chosen"), ("rejected", "logps/rejected")]),
    lines("Mean logits", &[("chosen", "logits/chosen"), ("rejected", "logits/rejected")]),
    lines("Score margin", &[("better \u{2212} worse", "objective/scores_margin")]),
];

const COMPLETIONS: &[ChartPlan] = &[
    within(
        lines(
            "Length, in tokens",
            &[("mean", "completions/mean_length"), ("of those that ended", "completions/mean_terminated_length")],
        ),
        Band::Between("completions/min_length", "completions/max_length"),
    ),
    share("Completions cut off at the maximum length", &[("share", "completions/clipped_ratio")]),
];

const OPTIMISATION: &[ChartPlan] = &[
    lines("Loss", &[("loss", "loss")]),
    lines("Policy loss", &[("policy", "loss/policy_avg")]),
    lines("Value loss", &[("value", "loss/value_avg")]),
    lines("Auxiliary loss of experts", &[("auxiliary", "aux_loss")]),
    lines("Loss of chosen answers", &[("chosen", "nll_loss")]),
    lines("KL divergence from the reference", &[("kl", "kl")]),
    lines("KL divergence from the reference, per completion", &[("kl", "objective/kl")]),
    lines("KL divergence of an update", &[("approximate", "policy/approxkl_avg")]),
    lines("Entropy, per token", &[("entropy", "entropy"), ("entropy", "policy/entropy_avg")]),
    lines("Gradient norm", &[("before clipping", "grad_norm"), ("of the critic", "critic_grad_norm")]),
    lines("Learning rate", &[("learning rate", "learning_rate"), ("of the critic", "critic_learning_rate")]),
    share(
        "Clipped ratios",
        &[
            ("low", "clip_ratio/low_mean"),
            ("high", "clip_ratio/high_mean"),
            ("either", "clip_ratio/region_mean"),
            ("policy", "policy/clipfrac_avg"),
            ("value", "val/clipfrac_avg"),
            ("cispo", "cispo_clip_ratio"),
        ],
    ),
];

const SPEED: &[ChartPlan] = &[
    lines("Tokens per second", &[("trained on", "perf/throughput"), ("generated", "perf/rollout_throughput")]),
    lines("Peak memory, in MB", &[("process", "perf/peak_memory_mb"), ("device", "perf/peak_device_memory_mb")]),
    lines("Waiting for a checkpoint, in seconds", &[("wait", "time/checkpoint")]),
];

/// Charts of metrics with fixed names, by heading.
const PLANS: [(&str, &[ChartPlan]); 5] = [
    ("Rewards", REWARD),
    ("Preferences", PREFERENCES),
    ("Completions", COMPLETIONS),
    ("Optimisation", OPTIMISATION),
    ("Speed", SPEED),
];

/// Returns the names of the metrics with a fixed place in a chart, except those of rewards and of a step's parts.
pub(super) fn metrics_read() -> impl Iterator<Item = &'static str> {
    let plans = PLANS.into_iter().flat_map(|(_, plans)| plans);
    plans.flat_map(|plan| {
        let band = match plan.band {
            Band::Around(name) => [Some(name), None],
            Band::Between(low, high) => [Some(low), Some(high)],
            Band::None => [None, None],
        };
        plan.lines.iter().map(|(_, name)| *name).chain(band.into_iter().flatten())
    })
}

/// Returns the charts of a run.
pub(super) fn arrange(figures: &ReportMetrics, eras: &Eras<'_>, weights: &[(String, f64)]) -> Charts {
    let mut drawing = ChartBuilder { figures, eras, shown: BTreeSet::new() };
    let mut reward = drawing.plans(&REWARD[..1]);
    reward.extend(drawing.single_rewards(weights));
    reward.extend(drawing.groups());
    reward.extend(drawing.plans(&REWARD[1..]));
    let preferences = drawing.plans(PREFERENCES);
    let completions = drawing.plans(COMPLETIONS);
    let optimisation = drawing.plans(OPTIMISATION);
    let mut speed: Vec<Chart> = drawing.step_time().into_iter().collect();
    speed.extend(drawing.plans(SPEED));
    let plugins = drawing.errors().into_iter().collect();
    let sections = [
        ("Rewards", reward),
        ("Preferences", preferences),
        ("Completions", completions),
        ("Optimisation", optimisation),
        ("Speed", speed),
        ("Plugins", plugins),
    ];
    let sections = sections.map(|(title, charts): (_, Vec<Chart>)| {
        let (zero, charts) = charts.into_iter().partition(|chart| is_zero(figures, chart));
        Section { title, charts, zero }
    });
    let (zero, others) = drawing.others().into_iter().partition(|chart| is_zero(figures, chart));
    let sections = sections.into_iter().chain([Section { title: OTHERS, charts: Vec::new(), zero }]);
    Charts { sections: sections.filter(|s| !s.charts.is_empty() || !s.zero.is_empty()).collect(), others }
}

/// Returns whether a chart has only zeros to show.
fn is_zero(figures: &ReportMetrics, chart: &Chart) -> bool {
    chart.lines.iter().all(|line| figures.series[line.series].values.iter().flatten().all(|v| *v == 0.0))
}

/// Returns charts of several runs, one for each of these metrics.
pub(super) fn one_by_one(metrics: &BTreeSet<String>) -> Charts {
    let mut left = metrics.clone();
    let mut take = |title: String, metric: &str, kind| left.take(metric).map(|metric| Chart::from_metric(title, metric, kind));
    let mut sections = Vec::new();
    for (title, plans) in PLANS {
        let mut charts = Vec::new();
        for plan in plans {
            let evaluated = |metric: &str| format!("{EVALUATED}{metric}");
            let is_there = |metric: &str| metrics.contains(metric) || metrics.contains(&evaluated(metric));
            let is_alone = plan.lines.iter().filter(|(_, metric)| is_there(metric)).count() == 1;
            for (label, metric) in plan.lines {
                let own = if is_alone { plan.title.to_owned() } else { format!("{}: {label}", plan.title) };
                charts.extend(take(own.clone(), metric, plan.kind));
                charts.extend(take(format!("{own}, {EVALUATION}"), &evaluated(metric), plan.kind));
            }
        }
        if title == "Rewards" {
            let means = metrics.iter().filter_map(|name| Some((name, mean_of(name)?)));
            let means: Vec<(&String, &str)> = means.collect();
            // With a single reward, its mean is the total.
            let several = means.iter().filter(|(name, _)| !name.starts_with(EVALUATED)).count() > 1;
            for (name, reward) in means.into_iter().filter(|_| several) {
                let of = if name.starts_with(EVALUATED) { format!("{reward}, {EVALUATION}") } else { reward.to_owned() };
                charts.extend(take(of, name, ChartKind::Lines));
            }
        }
        sections.push(Section { title, charts, zero: Vec::new() });
    }
    sections.retain(|section| !section.charts.is_empty());
    let others = left.into_iter().map(|metric| Chart::from_metric(metric.clone(), metric, ChartKind::Lines)).collect();
    Charts { sections, others }
}

/// Returns the name of the reward whose mean a metric is.
fn mean_of(metric: &str) -> Option<&str> {
    metric.strip_prefix(EVALUATED).unwrap_or(metric).strip_prefix("rewards/")?.strip_suffix("/mean")
}

impl Chart {
    /// Returns the chart of one metric.
    fn from_metric(title: String, metric: String, kind: ChartKind) -> Self {
        let label = String::new();
        let line =
            ChartLine { label, metric, series: 0, colour: 0, evaluation: false, breaks: Vec::new(), around: None, between: None };
        Self { title, note: String::new(), kind, lines: vec![line], eras: Vec::new() }
    }
}

struct ChartBuilder<'a> {
    figures: &'a ReportMetrics,
    eras: &'a Eras<'a>,
    /// Metrics that have a place already.
    shown: BTreeSet<String>,
}

impl ChartBuilder<'_> {
    fn chart(&mut self, title: &str, note: String, kind: ChartKind, mut lines: Vec<ChartLine>) -> Chart {
        let name = |line: &ChartLine| self.figures.series[line.series].name.as_str();
        let last_before = |start: usize| self.figures.steps[start - 1];
        lines.iter_mut().for_each(|line| line.breaks = self.eras.starts(name(line)).into_iter().map(last_before).collect());
        let recoloured = lines.iter().all(|line| line.colour == 0 && Eras::is_of_rewards(name(line)));
        let eras = lines.first().filter(|_| recoloured).map(|line| self.eras.named(name(line))).unwrap_or_default();
        for line in &lines {
            self.shown.insert(line.metric.clone());
            self.shown.extend(line.around.iter().chain(line.between.iter().flatten()).cloned());
        }
        Chart { title: title.to_owned(), note, kind, lines, eras }
    }

    /// Returns the line of a series.
    fn line_of(&self, label: &str, series: usize) -> ChartLine {
        let metric = self.figures.series[series].shown();
        let label = label.to_owned();
        ChartLine { label, metric, series, colour: 0, evaluation: false, breaks: Vec::new(), around: None, between: None }
    }

    /// Returns a metric's name in curves, if it has values.
    fn shown_name(&self, name: &str) -> Option<String> {
        Some(self.figures.series[self.figures.place(name)?].shown())
    }

    fn line(&self, label: &str, name: &str) -> Option<ChartLine> {
        Some(self.line_of(label, self.figures.place(name)?))
    }

    /// Returns lines with these labels and metrics, each in its own colour, followed by the lines of their evaluations.
    fn lines(&self, named: &[(&str, &str)]) -> Vec<ChartLine> {
        let place = |(label, name): &(&str, &str)| {
            let (own, evaluated) = (self.figures.place(name), self.figures.place(&format!("eval_{name}")));
            own.or(evaluated).map(|_| ((*label).to_owned(), own, evaluated))
        };
        let found: Vec<_> = named.iter().filter_map(place).collect();
        let own = found
            .iter()
            .enumerate()
            .filter_map(|(colour, (label, own, _))| Some(ChartLine { colour, ..self.line_of(label, (*own)?) }));
        let of_evaluation = |label: &str| if found.len() == 1 { EVALUATION.to_owned() } else { format!("{label}, {EVALUATION}") };
        let evaluations = found.iter().enumerate().filter_map(|(colour, (label, _, evaluated))| {
            Some(ChartLine { colour, evaluation: true, ..self.line_of(&of_evaluation(label), (*evaluated)?) })
        });
        own.chain(evaluations).collect()
    }

    fn plans(&mut self, plans: &[ChartPlan]) -> Vec<Chart> {
        plans.iter().filter_map(|plan| self.plan(plan)).collect()
    }

    fn plan(&mut self, plan: &ChartPlan) -> Option<Chart> {
        let mut lines = self.lines(plan.lines);
        let first = lines.first_mut()?;
        let mut note = "";
        match plan.band {
            Band::Around(name) => first.around = self.shown_name(name),
            Band::Between(low, high) => {
                first.between = self.shown_name(low).zip(self.shown_name(high)).map(|(low, high)| [low, high]);
            }
            Band::None => {}
        }
        if first.around.is_some() {
            note = "band: \u{b1} standard deviation";
        } else if first.between.is_some() {
            note = "band: shortest to longest";
        }
        Some(self.chart(plan.title, note.to_owned(), plan.kind, lines))
    }

    /// Returns a chart for each reward, or no charts if there is only one and it is the total.
    fn single_rewards(&mut self, weights: &[(String, f64)]) -> Vec<Chart> {
        // A reward that is only evaluated has no training metrics.
        let own = |name: &str| name.strip_prefix("eval_").unwrap_or(name).to_owned();
        let name_of = |name: &str| Some(own(name).strip_prefix("rewards/")?.strip_suffix("/mean")?.to_owned());
        let mut names: Vec<String> = Vec::new();
        for name in self.figures.series.iter().filter_map(|s| name_of(&s.name)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if let [only] = names.as_slice()
            && self.figures.place("reward").is_some()
            && self.figures.values(&format!("rewards/{only}/mean")) == self.figures.values("reward")
        {
            return Vec::new();
        }
        let mut charts = Vec::new();
        for name in names {
            let mut lines = self.lines(&[("mean", &format!("rewards/{name}/mean"))]);
            let Some(first) = lines.first_mut() else { continue };
            first.around = self.shown_name(&format!("rewards/{name}/std"));
            let weight = weights.iter().find(|(n, _)| *n == name).map(|(_, w)| format!("weight {}", words::number(*w)));
            charts.push(self.chart(&name, weight.unwrap_or_default(), ChartKind::Lines, lines));
        }
        charts
    }

    /// Returns the charts of what each of several rewards contributes to the groups that the algorithm compares.
    fn groups(&mut self) -> Vec<Chart> {
        let titles = [
            ("Share of the advantages", "share"),
            ("Groups in which no other reward differs", "alone"),
            ("Groups in which the reward differs", "varies"),
        ];
        let mut charts = Vec::new();
        for (title, what) in titles {
            let end = format!("/{what}");
            let reward =
                |s: &MetricSeries| Some((s.name.strip_prefix("rewards/")?.strip_suffix(&end)?.to_owned(), s.name.clone()));
            let named: Vec<(String, String)> = self.figures.series.iter().filter_map(reward).collect();
            let named: Vec<(&str, &str)> = named.iter().map(|(reward, name)| (reward.as_str(), name.as_str())).collect();
            let lines = self.lines(&named);
            if !lines.is_empty() {
                charts.push(self.chart(title, String::new(), ChartKind::Lines, lines));
            }
        }
        charts
    }

    /// Returns the chart of a step's time, divided into its parts, longest first.
    fn step_time(&mut self) -> Option<Chart> {
        let total: f64 = self.figures.values("step_time").iter().flatten().sum();
        let sum = |values: &[Option<f64>]| values.iter().flatten().sum::<f64>();
        let line = |(part, place): (&str, usize)| {
            let share = sum(&self.figures.series[place].values) / total;
            (share, self.line_of(&part.replace('_', " "), place))
        };
        let parts = self.figures.parts_of_step().into_iter().map(line);
        let mut parts: Vec<(f64, ChartLine)> = parts.filter(|(share, _)| *share >= SMALL_PART).collect();
        parts.sort_by(|a, b| b.0.total_cmp(&a.0));
        if parts.is_empty() {
            let line = self.line("step", "step_time")?;
            return Some(self.chart("Time of a step, in seconds", String::new(), ChartKind::Lines, vec![line]));
        }
        let whole = self.line("step", "step_time")?;
        let lines = std::iter::once(whole).chain(parts.into_iter().map(|(_, line)| line)).collect();
        Some(self.chart("Time of a step, in seconds", String::new(), ChartKind::Stack, lines))
    }

    /// Returns the chart of plugin errors.
    fn errors(&mut self) -> Option<Chart> {
        let plugin =
            |s: &MetricSeries| Some((s.name.strip_prefix("plugins/")?.strip_suffix("/errors")?.to_owned(), s.name.clone()));
        let named: Vec<(String, String)> = self.figures.series.iter().filter_map(plugin).collect();
        let named: Vec<(&str, &str)> = named.iter().map(|(plugin, name)| (plugin.as_str(), name.as_str())).collect();
        let lines = self.lines(&named);
        (!lines.is_empty()).then(|| self.chart("Errors of plugins", String::new(), ChartKind::Lines, lines))
    }

    /// Returns one chart for each other metric.
    fn others(&mut self) -> Vec<Chart> {
        let mut left: Vec<(String, String)> = self.figures.series.iter().map(|s| (s.name.clone(), s.shown())).collect();
        left.sort();
        let mut charts = Vec::new();
        for (name, shown) in left {
            if !self.shown.contains(&shown)
                && let Some(line) = self.line("", &name)
            {
                charts.push(self.chart(&shown, String::new(), ChartKind::Lines, vec![line]));
            }
        }
        charts
    }
}
