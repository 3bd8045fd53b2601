//! Eras: ranges of steps whose metrics are comparable. A swap of a reward begins a new era, in which the same number means something else.

use super::dependence::Dependence;
use super::series::ReportMetrics;
use super::timeline::{RunTimeline, VersionPeriod};
use super::words;
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of eras of a metric. If there are more, the first ones are merged.
const MOST: usize = 40;

/// The metric that depends on all rewards and their weights.
const ALL: &str = "reward";

/// An era of a metric.
#[derive(Debug, PartialEq, Serialize)]
pub struct Era {
    /// Steps of the era.
    pub label: String,
    /// Index of the era's colour: the same in all charts for eras that began at the same step. A version that comes back has its old colour
    /// again.
    pub colour: usize,
}

/// The start of an era after another.
#[derive(Clone, Copy)]
struct EraStart {
    /// First point of the era.
    point: usize,
    /// Last step of the era before. Rows may be logged less often than every step, so it need not be a point's.
    before: u64,
    /// First step of the era.
    step: u64,
}

/// The eras of a run's metrics.
pub(super) struct Eras<'a> {
    figures: &'a ReportMetrics,
    story: &'a RunTimeline,
}

impl<'a> Eras<'a> {
    pub(super) fn new(figures: &'a ReportMetrics, story: &'a RunTimeline) -> Self {
        Self { figures, story }
    }

    /// Returns whether a metric depends on rewards, so that its curve gets a colour for each era.
    pub(super) fn is_of_rewards(metric: &str) -> bool {
        Dependence::new(metric) != Dependence::Algorithm
    }

    /// Returns the points at which a new era of a metric begins, without the first point.
    pub(super) fn starts(&self, metric: &str) -> Vec<usize> {
        self.era_starts(metric).iter().map(|start| start.point).collect()
    }

    /// Returns where each era of a metric begins, except for the first.
    fn era_starts(&self, metric: &str) -> Vec<EraStart> {
        let dependence = Dependence::new(metric);
        let starts = self.starts_where(|plugin, of_weight| self.matters(dependence, plugin, of_weight));
        starts[starts.len().saturating_sub(MOST - 1)..].to_vec()
    }

    fn matters(&self, dependence: Dependence<'_>, plugin: &str, of_weight: bool) -> bool {
        dependence.is_affected_by(plugin, self.story.is_algorithm(plugin), of_weight)
    }

    fn starts_where(&self, matters: impl Fn(&str, bool) -> bool) -> Vec<EraStart> {
        let steps = &self.figures.steps;
        let mut starts: BTreeMap<usize, EraStart> = BTreeMap::new();
        for change in self.story.changes.iter().filter(|change| matters(&change.plugin, change.of_weight)) {
            let point = steps.partition_point(|step| *step <= change.step);
            let start = EraStart { point, before: change.step, step: change.step.saturating_add(1) };
            // Of several changes between two points, the last one counts.
            let known = starts.entry(point).or_insert(start);
            if known.before < start.before {
                *known = start;
            }
        }
        // Rows name the plugins that produced them, regardless of the events.
        let mut before = None;
        for (point, now) in self.figures.versions().enumerate() {
            let Some(now) = now else { continue };
            if let Some(before) = before.replace(now)
                && now
                    .iter()
                    .any(|(plugin, own)| before.get(plugin).is_some_and(|old| !old.is_same(own)) && matters(plugin, false))
            {
                starts.entry(point).or_insert(EraStart { point, before: steps[point - 1], step: steps[point] });
            }
        }
        starts.into_values().filter(|start| (1..steps.len()).contains(&start.point)).collect()
    }

    /// Returns the first point of a metric's newest era.
    pub(super) fn newest(&self, metric: &str) -> usize {
        self.starts(metric).last().copied().unwrap_or(0)
    }

    /// Labels the eras of a metric with their steps, if there are several.
    pub(super) fn named(&self, metric: &str) -> Vec<Era> {
        let starts = self.era_starts(metric);
        let Some((first, last)) = starts.first().zip(starts.last()) else { return Vec::new() };
        let between = starts.windows(2).map(|pair| match (words::count(pair[0].step), words::count(pair[1].before)) {
            (from, to) if from == to => format!("step {from}"),
            (from, to) => format!("{from} to {to}"),
        });
        let begin = std::iter::once(format!("to step {}", words::count(first.before)));
        let labels = begin.chain(between).chain([format!("from step {}", words::count(last.step))]);
        let whole = self.of_all_rewards();
        let mut seen: Vec<(String, usize)> = Vec::new();
        let points = std::iter::once(first.point - 1).chain(starts.iter().map(|start| start.point));
        let colours = points.enumerate().map(|(i, point)| {
            let made_by = self.made_by(metric, point);
            let known = seen.iter().find(|(other, _)| *other == made_by).map(|(_, colour)| *colour);
            known.unwrap_or_else(|| {
                let of_whole = || whole.iter().position(|all| *all == self.made_by(ALL, point)).unwrap_or(seen.len());
                // The first era begins with the run, wherever it ends.
                let colour = if i == 0 { 0 } else { of_whole() };
                seen.push((made_by, colour));
                colour
            })
        });
        labels.zip(colours.collect::<Vec<_>>()).map(|(label, colour)| Era { label, colour }).collect()
    }

    /// Returns what determined the total of all rewards, in order of first use. It gives eras of different metrics that begin at the same
    /// change the same colour.
    fn of_all_rewards(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let starts = self.starts(ALL);
        for point in starts.first().map(|first| first - 1).into_iter().chain(starts) {
            let made_by = self.made_by(ALL, point);
            if !all.contains(&made_by) {
                all.push(made_by);
            }
        }
        all
    }

    /// Returns what determined a metric at a point: the versions and weights that it depends on.
    fn made_by(&self, metric: &str, point: usize) -> String {
        let (dependence, step) = (Dependence::new(metric), self.figures.steps[point]);
        let matters = |plugin: &str, of_weight| self.matters(dependence, plugin, of_weight);
        let in_use =
            |v: &&VersionPeriod| v.since < step && v.until.is_none_or(|until| step <= until) && matters(&v.plugin, false);
        let versions: Vec<(&str, usize)> =
            self.story.versions.iter().filter(in_use).map(|v| (v.plugin.as_str(), v.number)).collect();
        let weights = self.story.changes.iter().filter(|c| c.of_weight && c.step < step && matters(&c.plugin, true)).count();
        let named = self.figures.versions().nth(point).flatten();
        let named: Vec<_> = named.into_iter().flatten().filter(|(plugin, _)| matters(plugin, false)).collect();
        format!("{versions:?} {weights} {named:?}")
    }
}
