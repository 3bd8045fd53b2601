//! Metrics that are derived from other metrics by an algorithm's rules.

use crate::plugin::{DerivationRule, DerivedMetricHint};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A value and the seconds since the start of training at which it was logged.
type TimedValue = (f64, f64);

/// Derives metrics from others by the algorithm's rules.
#[derive(Default)]
pub(super) struct DerivedMetrics {
    metrics: Vec<DerivedMetricHint>,
    /// Origin of rates: the start or, in a resumed run, the first row of each metric.
    first: BTreeMap<String, TimedValue>,
    is_resumed: bool,
}

impl DerivedMetrics {
    /// Sets the rules.
    pub(super) fn set(&mut self, metrics: &[DerivedMetricHint]) {
        self.metrics = metrics.to_vec();
    }

    /// Marks the run as resumed: its time began in an earlier process.
    pub(super) fn resume(&mut self) {
        self.is_resumed = true;
        self.first.clear();
    }

    /// Returns the derived metrics of a row that is logged after `seconds`, or none if the row lacks a metric that a rule needs.
    pub(super) fn derive(&mut self, row: &BTreeMap<String, f64>, seconds: f64) -> Map<String, Value> {
        let mut more = Map::new();
        if !self.metrics.iter().all(|metric| row.contains_key(&metric.from)) {
            return more;
        }
        for DerivedMetricHint { name, rule, from } in &self.metrics {
            let Some(&value) = row.get(from) else { continue };
            match rule {
                DerivationRule::Copy => {
                    more.insert(name.clone(), value.into());
                }
                DerivationRule::PerSecond => {
                    let begin = if self.is_resumed { (value, seconds) } else { (0.0, 0.0) };
                    let (first, since) = *self.first.entry(name.clone()).or_insert(begin);
                    if seconds > since {
                        more.insert(name.clone(), ((value - first) / (seconds - since)).floor().into());
                    }
                }
            }
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_from_the_start_or_from_a_resumed_runs_first_row() {
        let mut derived = DerivedMetrics::default();
        let metric = |name: &str, rule, from: &str| DerivedMetricHint { name: name.into(), rule, from: from.into() };
        derived.set(&[metric("lr", DerivationRule::Copy, "learning_rate"), metric("eps", DerivationRule::PerSecond, "episode")]);
        let row = |episode: f64| BTreeMap::from([("learning_rate".to_owned(), 0.5), ("episode".to_owned(), episode)]);
        let shown = |map: Map<String, Value>| Value::Object(map).to_string();
        assert_eq!(shown(derived.derive(&row(25.0), 10.0)), r#"{"lr":0.5,"eps":2.0}"#);
        assert_eq!(shown(derived.derive(&BTreeMap::from([("learning_rate".to_owned(), 0.5)]), 11.0)), "{}");
        derived.resume();
        assert_eq!(shown(derived.derive(&row(100.0), 4.0)), r#"{"lr":0.5}"#);
        assert_eq!(shown(derived.derive(&row(130.0), 14.0)), r#"{"lr":0.5,"eps":3.0}"#);
    }
}
