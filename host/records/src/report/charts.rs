//! Decides which metrics share a chart. The rest go into a section of their own.

use super::eras::{Era, Eras};
use super::figures::{Figures, Series};
use super::words;
use serde::Serialize;
use std::collections::BTreeSet;

/// Parts below this share of a step's time get no layer of their own.
const SMALL_PART: f64 = 0.01;

/// What lines of evaluations are called.
const EVALUATION: &str = "evaluation";

/// Note on a line without another band, if each point stands for several steps.
const EXTREMES: &str = "band: minimum to maximum";

/// Charts under one heading.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    pub title: &'static str,
    pub id: &'static str,
    pub charts: Vec<Chart>,
    /// Charts of metrics that are 0 in every step.
    pub zero: Vec<Chart>,
}

/// A chart.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    pub id: String,
    pub title: String,
    pub note: String,
    pub kind: Kind,
    pub lines: Vec<Line>,
    /// The stretches between swaps of rewards; empty if there is only one.
    pub eras: Vec<Era>,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Lines,
    /// Values between 0 and 1.
    Share,
    /// The total as a line, its parts as stacked layers.
    Stack,
}

/// A line of a chart. Numbers are indices of the page's series.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub label: String,
    pub series: usize,
    /// The number of its colour.
    pub colour: usize,
    /// Whether it is of evaluations, which only some steps have.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub evaluation: bool,
    /// The points at which the line breaks, since a plugin was swapped there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<usize>,
    /// The standard deviation, drawn on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around: Option<usize>,
    /// Minimum and maximum of the values that the line averages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<(usize, usize)>,
}

impl Line {
    fn new(label: &str, series: usize) -> Self {
        Self { label: label.to_owned(), series, colour: 0, evaluation: false, breaks: Vec::new(), around: None, between: None }
    }
}

/// The band around a chart's first line.
#[derive(Clone, Copy)]
enum Band {
    None,
    Around(&'static str),
    Between(&'static str, &'static str),
}

/// A chart of metrics with fixed names.
struct Plan {
    title: &'static str,
    kind: Kind,
    lines: &'static [(&'static str, &'static str)],
    band: Band,
}

const fn lines(title: &'static str, lines: &'static [(&'static str, &'static str)]) -> Plan {
    Plan { title, kind: Kind::Lines, lines, band: Band::None }
}

const fn share(title: &'static str, lines: &'static [(&'static str, &'static str)]) -> Plan {
    Plan { title, kind: Kind::Share, lines, band: Band::None }
}

const fn within(plan: Plan, band: Band) -> Plan {
    Plan { band, ..plan }
}

const REWARD: &[Plan] = &[
    within(lines("Reward", &[("reward", "reward")]), Band::Around("reward_std")),
    lines("Score before and after the KL penalty", &[("before", "objective/scores"), ("after", "objective/rlhf_reward")]),
    share("Groups with equal rewards", &[("share", "frac_reward_zero_std")]),
];

const PREFERENCES: &[Plan] = &[
    share("Accuracy", &[("chosen preferred", "rewards/accuracies")]),
    lines("Margin", &[("chosen \u{2212} rejected", "rewards/margins")]),
    lines("Implicit rewards", &[("chosen", "rewards/chosen"), ("rejected", "rewards/rejected")]),
    lines("Log-probabilities of answers", &[("chosen", "logps/chosen"), ("rejected", "logps/rejected")]),
    lines("Mean logits", &[("chosen", "logits/chosen"), ("rejected", "logits/rejected")]),
    lines("Score margin", &[("better \u{2212} worse", "objective/scores_margin")]),
];

const COMPLETIONS: &[Plan] = &[
    within(
        lines(
            "Length, in tokens",
            &[("mean", "completions/mean_length"), ("of those that ended", "completions/mean_terminated_length")],
        ),
        Band::Between("completions/min_length", "completions/max_length"),
    ),
    share("Completions cut off at the maximum length", &[("share", "completions/clipped_ratio")]),
];

const OPTIMISATION: &[Plan] = &[
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

const SPEED: &[Plan] = &[
    lines("Tokens per second", &[("trained on", "perf/throughput"), ("generated", "perf/rollout_throughput")]),
    lines("Peak memory, in MB", &[("process", "perf/peak_memory_mb"), ("device", "perf/peak_device_memory_mb")]),
    lines("Waiting for a checkpoint, in seconds", &[("wait", "time/checkpoint")]),
];

/// Returns the names of the metrics that have a place in a chart, besides those of rewards and of a step's parts.
pub(super) fn metrics_read() -> impl Iterator<Item = &'static str> {
    let plans = [REWARD, PREFERENCES, COMPLETIONS, OPTIMISATION, SPEED].into_iter().flatten();
    plans.flat_map(|plan| {
        let band = match plan.band {
            Band::Around(name) => [Some(name), None],
            Band::Between(low, high) => [Some(low), Some(high)],
            Band::None => [None, None],
        };
        plan.lines.iter().map(|(_, name)| *name).chain(band.into_iter().flatten())
    })
}

/// Returns the page's charts, and charts of all other metrics.
pub(super) fn arrange(figures: &Figures, eras: &Eras<'_>, weights: &[(String, f64)]) -> (Vec<Section>, Vec<Chart>) {
    let mut drawing = Drawing { figures, eras, shown: BTreeSet::new(), charts: 0 };
    let mut reward = drawing.plans(&REWARD[..1]);
    reward.extend(drawing.single_rewards(weights));
    reward.extend(drawing.groups());
    reward.extend(drawing.plans(&REWARD[1..]));
    let preferences = drawing.plans(PREFERENCES);
    let completions = drawing.plans(COMPLETIONS);
    let optimisation = drawing.plans(OPTIMISATION);
    let mut speed: Vec<Chart> = drawing.step_time().into_iter().collect();
    speed.extend(drawing.plans(SPEED));
    let sections = [
        ("Rewards", "rewards", reward),
        ("Preferences", "preferences", preferences),
        ("Completions", "completions", completions),
        ("Optimisation", "optimisation", optimisation),
        ("Speed", "speed", speed),
    ];
    let sections = sections.map(|(title, id, charts)| {
        let (zero, charts) = charts.into_iter().partition(|chart| is_zero(figures, chart));
        Section { title, id, charts, zero }
    });
    let others = drawing.others();
    (sections.into_iter().filter(|s| !s.charts.is_empty() || !s.zero.is_empty()).collect(), others)
}

/// Returns whether a chart has nothing but zeros to show.
fn is_zero(figures: &Figures, chart: &Chart) -> bool {
    chart.lines.iter().all(|line| figures.series[line.series].values.iter().flatten().all(|v| *v == 0.0))
}

struct Drawing<'a> {
    figures: &'a Figures,
    eras: &'a Eras<'a>,
    shown: BTreeSet<usize>,
    charts: usize,
}

impl Drawing<'_> {
    fn chart(&mut self, title: &str, note: String, kind: Kind, mut lines: Vec<Line>) -> Chart {
        self.charts += 1;
        let name = |line: &Line| self.figures.series[line.series].name.as_str();
        lines.iter_mut().for_each(|line| line.breaks = self.eras.starts(name(line)));
        let recoloured = lines.iter().all(|line| line.colour == 0 && Eras::is_of_rewards(name(line)));
        let eras = lines.first().filter(|_| recoloured).map(|line| self.eras.named(name(line))).unwrap_or_default();
        for line in &lines {
            self.shown.insert(line.series);
            self.shown.extend(line.around);
            self.shown.extend(line.between.iter().flat_map(|&(low, high)| [low, high]));
        }
        // `report.js` draws the band that this note names.
        let trained: Vec<&Line> = lines.iter().filter(|line| !line.evaluation).collect();
        let extremes = matches!(trained.as_slice(), [Line { around: None, between: None, .. }]) && self.figures.per_point > 1;
        let note = match (extremes, note.is_empty()) {
            (true, true) => EXTREMES.to_owned(),
            (true, false) => format!("{note}, {EXTREMES}"),
            (false, _) => note,
        };
        Chart { id: format!("chart-{}", self.charts), title: title.to_owned(), note, kind, lines, eras }
    }

    fn line(&self, label: &str, name: &str) -> Option<Line> {
        Some(Line::new(label, self.figures.place(name)?))
    }

    /// Returns lines with these labels and metrics, a colour each, and after them the lines of their evaluations.
    fn lines(&self, named: &[(&str, &str)]) -> Vec<Line> {
        let place = |(label, name): &(&str, &str)| {
            let (own, evaluated) = (self.figures.place(name), self.figures.place(&format!("eval_{name}")));
            own.or(evaluated).map(|_| ((*label).to_owned(), own, evaluated))
        };
        let found: Vec<_> = named.iter().filter_map(place).collect();
        let own =
            found.iter().enumerate().filter_map(|(colour, (label, own, _))| Some(Line { colour, ..Line::new(label, (*own)?) }));
        let of_evaluation = |label: &str| if found.len() == 1 { EVALUATION.to_owned() } else { format!("{label}, {EVALUATION}") };
        let evaluations = found.iter().enumerate().filter_map(|(colour, (label, _, evaluated))| {
            Some(Line { colour, evaluation: true, ..Line::new(&of_evaluation(label), (*evaluated)?) })
        });
        own.chain(evaluations).collect()
    }

    fn plans(&mut self, plans: &[Plan]) -> Vec<Chart> {
        plans.iter().filter_map(|plan| self.plan(plan)).collect()
    }

    fn plan(&mut self, plan: &Plan) -> Option<Chart> {
        let mut lines = self.lines(plan.lines);
        let first = lines.first_mut()?;
        let mut note = "";
        match plan.band {
            Band::Around(name) => first.around = self.figures.place(name),
            Band::Between(low, high) => first.between = self.figures.place(low).zip(self.figures.place(high)),
            Band::None => {}
        }
        if first.around.is_some() {
            note = "band: \u{b1} standard deviation";
        } else if first.between.is_some() {
            note = "band: shortest to longest";
        }
        Some(self.chart(plan.title, note.to_owned(), plan.kind, lines))
    }

    /// Returns a chart for each reward, or none if there is only one and it is the total.
    fn single_rewards(&mut self, weights: &[(String, f64)]) -> Vec<Chart> {
        // A reward of evaluations only has no metrics of training.
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
            first.around = self.figures.place(&format!("rewards/{name}/std"));
            let weight = weights.iter().find(|(n, _)| *n == name).map(|(_, w)| format!("weight {}", words::number(*w)));
            charts.push(self.chart(&name, weight.unwrap_or_default(), Kind::Lines, lines));
        }
        charts
    }

    /// Returns what each of several rewards contributes to the groups that the algorithm compares.
    fn groups(&mut self) -> Vec<Chart> {
        let titles = [
            ("Share of the advantages", "share"),
            ("Groups in which no other reward differs", "alone"),
            ("Groups in which the reward differs", "varies"),
        ];
        let mut charts = Vec::new();
        for (title, what) in titles {
            let end = format!("/{what}");
            let reward = |s: &Series| Some((s.name.strip_prefix("rewards/")?.strip_suffix(&end)?.to_owned(), s.name.clone()));
            let named: Vec<(String, String)> = self.figures.series.iter().filter_map(reward).collect();
            let named: Vec<(&str, &str)> = named.iter().map(|(reward, name)| (reward.as_str(), name.as_str())).collect();
            let lines = self.lines(&named);
            if !lines.is_empty() {
                charts.push(self.chart(title, String::new(), Kind::Lines, lines));
            }
        }
        charts
    }

    /// Returns a step's time divided into its parts, the longest first.
    fn step_time(&mut self) -> Option<Chart> {
        let total: f64 = self.figures.values("step_time").iter().flatten().sum();
        let sum = |values: &[Option<f64>]| values.iter().flatten().sum::<f64>();
        let line = |(part, place): (&str, usize)| {
            let share = sum(&self.figures.series[place].values) / total;
            (share, Line::new(&part.replace('_', " "), place))
        };
        let parts = self.figures.parts_of_step().into_iter().map(line);
        let mut parts: Vec<(f64, Line)> = parts.filter(|(share, _)| *share >= SMALL_PART).collect();
        parts.sort_by(|a, b| b.0.total_cmp(&a.0));
        if parts.is_empty() {
            let line = self.line("step", "step_time")?;
            return Some(self.chart("Time of a step, in seconds", String::new(), Kind::Lines, vec![line]));
        }
        let whole = self.line("step", "step_time")?;
        let lines = std::iter::once(whole).chain(parts.into_iter().map(|(_, line)| line)).collect();
        Some(self.chart("Time of a step, in seconds", String::new(), Kind::Stack, lines))
    }

    /// Returns one chart for each other metric.
    fn others(&mut self) -> Vec<Chart> {
        let mut left: Vec<(usize, String)> = self.figures.series.iter().map(|s| s.name.clone()).enumerate().collect();
        left.sort_by(|a, b| a.1.cmp(&b.1));
        let mut charts = Vec::new();
        for (place, name) in left {
            if !self.shown.contains(&place)
                && let Some(line) = self.line("", &name)
            {
                charts.push(self.chart(&name, String::new(), Kind::Lines, vec![line]));
            }
        }
        charts
    }
}
