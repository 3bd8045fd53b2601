//! Accumulates metrics between two log lines.

use crate::config::{is_shown, printable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of metrics of a window, which may include those of many plugins, and maximum length of a name, in bytes.
const MOST_NAMES: usize = 1 << 14;
const LONGEST_NAME: usize = 512;

/// Keys of a log line that are not metrics.
const OF_LINES: [&str; 3] = ["step", "epoch", "time"];

/// A rule that reduces several values of a metric to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum MetricReduction {
    /// Weighted mean.
    Mean,
    /// Sum.
    Sum,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Newest value.
    Last,
}

/// A metric with its weight, such as a number of samples or tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name, as TRL prints it.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Weight of the value in a mean.
    pub weight: f64,
    /// Reduction of values with this name.
    pub reduction: MetricReduction,
}

impl Metric {
    /// Creates a mean over `weight` samples or tokens.
    pub fn mean(name: impl Into<String>, value: f64, weight: f64) -> Self {
        Self { name: name.into(), value, weight, reduction: MetricReduction::Mean }
    }

    /// Creates a metric with another reduction.
    pub fn new(name: impl Into<String>, value: f64, reduction: MetricReduction) -> Self {
        Self { name: name.into(), value, weight: 1.0, reduction }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct MetricAccumulator {
    #[serde(with = "any_number")]
    total: f64,
    #[serde(with = "any_number")]
    weight: f64,
    reduction: MetricReduction,
}

/// Serialises infinity and NaN as texts, since JSON has no numbers for them, and a checkpoint with `null` instead couldn't be read. Reads
/// `null` as NaN, for older checkpoints that have it.
mod any_number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum JsonNumber {
        Number(f64),
        Text(String),
        Null,
    }

    pub(super) fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
        // The format between processes has every number.
        if !to.is_human_readable() {
            return number.serialize(to);
        }
        let written = if number.is_finite() { JsonNumber::Number(*number) } else { JsonNumber::Text(number.to_string()) };
        written.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        if !from.is_human_readable() {
            return f64::deserialize(from);
        }
        match JsonNumber::deserialize(from)? {
            JsonNumber::Number(number) => Ok(number),
            JsonNumber::Text(text) => text.parse().map_err(D::Error::custom),
            JsonNumber::Null => Ok(f64::NAN),
        }
    }
}

/// Returns whether a metric of this name measures the machine rather than learning, and thus differs between identical runs.
pub fn is_of_machine(name: &str) -> bool {
    name == "step_time" || name.starts_with("time/") || name.starts_with("perf/")
}

/// The metrics of one or more steps.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct MetricsWindow {
    sums: BTreeMap<String, MetricAccumulator>,
}

impl MetricsWindow {
    /// Adds metrics. For metrics of the same name, the first one's reduction applies.
    pub fn extend(&mut self, metrics: impl IntoIterator<Item = Metric>) {
        for m in metrics {
            let sum = self.sums.entry(m.name).or_insert(MetricAccumulator {
                total: match m.reduction {
                    MetricReduction::Min => f64::INFINITY,
                    MetricReduction::Max => f64::NEG_INFINITY,
                    MetricReduction::Mean | MetricReduction::Sum | MetricReduction::Last => 0.0,
                },
                weight: 0.0,
                reduction: m.reduction,
            });
            match sum.reduction {
                MetricReduction::Mean => {
                    sum.total += m.value * m.weight;
                    sum.weight += m.weight;
                }
                MetricReduction::Sum => sum.total += m.value,
                MetricReduction::Min => sum.total = sum.total.min(m.value),
                MetricReduction::Max => sum.total = sum.total.max(m.value),
                MetricReduction::Last => sum.total = m.value,
            }
        }
    }

    /// Adds the metrics of a newer window.
    pub fn merge(&mut self, newer: &Self) {
        for (name, new) in &newer.sums {
            let Some(sum) = self.sums.get_mut(name) else {
                self.sums.insert(name.clone(), *new);
                continue;
            };
            match sum.reduction {
                MetricReduction::Mean | MetricReduction::Sum => {
                    sum.total += new.total;
                    sum.weight += new.weight;
                }
                MetricReduction::Min => sum.total = sum.total.min(new.total),
                MetricReduction::Max => sum.total = sum.total.max(new.total),
                MetricReduction::Last => sum.total = new.total,
            }
        }
    }

    /// Returns what is wrong with a window read from a file, if anything: too many metrics, or a name that is invalid in a log or reserved
    /// for its other keys.
    pub fn fault(&self) -> Option<String> {
        if self.sums.len() > MOST_NAMES {
            return Some(format!("has {} metrics; the limit is {MOST_NAMES}", self.sums.len()));
        }
        let wrong = |name: &&String| !is_shown(name, LONGEST_NAME) || OF_LINES.contains(&name.as_str());
        self.sums.keys().find(wrong).map(|name| format!("has a metric \"{}\", which no run has", printable(name, LONGEST_NAME)))
    }

    /// Returns whether the window has metrics of steps, rather than only of the machine.
    pub fn has_steps(&self) -> bool {
        self.names().any(|name| !is_of_machine(name))
    }

    /// Returns the names of the metrics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sums.keys().map(String::as_str)
    }

    /// Returns the reduced metrics by name and empties the window. Omits means whose weight is 0.
    pub fn take(&mut self) -> BTreeMap<String, f64> {
        std::mem::take(&mut self.sums)
            .into_iter()
            .filter_map(|(name, s)| match s.reduction {
                MetricReduction::Mean => (s.weight > 0.0).then(|| (name, s.total / s.weight)),
                _ => Some((name, s.total)),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_travels_between_processes_and_into_a_checkpoint_with_numbers_of_every_kind() {
        let mut window = MetricsWindow::default();
        window.extend([
            Metric::new("a", f64::INFINITY, MetricReduction::Max),
            Metric::mean("b", 0.1, 3.0),
            Metric::mean("c", f64::NAN, 1.0),
        ]);
        let shown = format!("{window:?}");
        let sent = postcard::to_allocvec(&window).unwrap();
        assert_eq!(format!("{:?}", postcard::from_bytes::<MetricsWindow>(&sent).unwrap()), shown);
        let written = serde_json::to_string(&window).unwrap();
        assert_eq!(format!("{:?}", serde_json::from_str::<MetricsWindow>(&written).unwrap()), shown);
    }

    #[test]
    fn means_are_weighted_and_never_means_of_means() {
        let mut window = MetricsWindow::default();
        window.extend([Metric::mean("kl", 1.0, 3.0), Metric::mean("kl", 5.0, 1.0), Metric::mean("none", 0.0, 0.0)]);
        window.extend([Metric::new("n", 2.0, MetricReduction::Sum), Metric::new("n", 3.0, MetricReduction::Sum)]);
        window.extend([Metric::new("low", 2.0, MetricReduction::Min), Metric::new("low", -3.0, MetricReduction::Min)]);
        window.extend([Metric::new("high", 2.0, MetricReduction::Max), Metric::new("high", 7.0, MetricReduction::Max)]);
        window.extend([Metric::new("rate", 9.0, MetricReduction::Last), Metric::new("rate", 4.0, MetricReduction::Last)]);
        let taken = window.take();
        assert_eq!(
            taken.iter().map(|(k, v)| (k.as_str(), *v)).collect::<Vec<_>>(),
            [("high", 7.0), ("kl", 2.0), ("low", -3.0), ("n", 5.0), ("rate", 4.0)]
        );
        assert!(window.take().is_empty());
    }

    #[test]
    fn a_window_is_read_as_it_was_written() {
        let mut window = MetricsWindow::default();
        window.extend([Metric::mean("a", 1.5, 3.0), Metric::mean("b", f64::MAX, 2.0), Metric::mean("c", f64::NAN, 1.0)]);
        window
            .extend([Metric::new("d", f64::NEG_INFINITY, MetricReduction::Last), Metric::new("e", 1e300, MetricReduction::Sum)]);
        let text = serde_json::to_string(&window).unwrap();
        let read: MetricsWindow = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{read:?}"), format!("{window:?}"), "{text}");
        // As written by earlier versions.
        let text = r#"{"sums": {"a": {"total": null, "weight": 1.0, "reduction": "Mean"}}}"#;
        assert!(serde_json::from_str::<MetricsWindow>(text).unwrap().take()["a"].is_nan());
    }

    #[test]
    fn windows_merge_as_if_all_had_gone_into_one() {
        let all = |v: f64| {
            let named = |name: &str, reduction| Metric { name: name.into(), value: v, weight: v.abs(), reduction };
            use MetricReduction::{Last, Max, Mean, Min, Sum};
            [("a", Mean), ("b", Sum), ("c", Min), ("d", Max), ("e", Last)].map(|(n, r)| named(n, r))
        };
        let (mut one, mut merged) = (MetricsWindow::default(), MetricsWindow::default());
        for v in [2.0, -3.0, 0.5] {
            one.extend(all(v));
            let mut part = MetricsWindow::default();
            part.extend(all(v));
            merged.merge(&part);
        }
        assert_eq!(merged.take(), one.take());
    }
}
