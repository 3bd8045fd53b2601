//! Comparison of runs: groups of runs that differ only in their seeds, with the last and best value of each metric.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use crate::report::{RunComparison, SeedGroup, SeedSpread, visible_json};
use serde_json::{Map, Value, json};

/// Maximum numbers of groups and of metrics with curves.
const MOST_GROUPS: usize = 24;
const MOST_METRICS: usize = 400;

/// Maximum number of points per curve, and in all curves together.
const MOST_POINTS: usize = 1000;
const MOST_IN_ALL: usize = 1_000_000;

/// Maximum number of metrics with values; the most important come first.
const MOST_VALUES: usize = 200;

impl PageApi {
    /// Answers `run=NAME&run=NAME...`.
    pub(super) fn comparison(&self, query: &Query) -> Result<Value> {
        let names: Vec<&str> = query.all("run").collect();
        let paths = names.iter().map(|name| self.path(name)).collect::<Result<Vec<_>>>()?;
        let comparison = RunComparison::load(&paths).map_err(|error| ApiRefusal::invalid(error.to_string()))?;
        if comparison.runs.len() != names.len() {
            return Err(ApiRefusal::invalid("name each run once"));
        }
        Ok(visible_json(&answer(&comparison, &names)))
    }
}

fn answer(comparison: &RunComparison, names: &[&str]) -> Value {
    let RunComparison { groups, metrics, key_metrics, notes, .. } = comparison;
    let has_seeds = groups.iter().any(|group| group.runs.len() > 1);
    let shown = &metrics[..metrics.len().min(MOST_METRICS)];
    let drawn = if has_seeds { groups.len().min(MOST_GROUPS) } else { 0 };
    let points = (MOST_IN_ALL / (3 * drawn * shown.len()).max(1)).clamp(20, MOST_POINTS);
    let curves = |group: &SeedGroup| {
        let curve = |metric: &String| {
            let curve = comparison.curve(group, metric, points);
            (!curve.x.is_empty()).then(|| (metric.clone(), json!(curve)))
        };
        shown.iter().filter_map(curve).collect::<Map<String, Value>>()
    };
    let value = |group: &SeedGroup, metric: &String| {
        let last = spread(comparison.last(group, metric)?);
        Some((metric.clone(), json!({ "last": last, "best": comparison.best(group, metric).map(spread) })))
    };
    let view = |(i, group): (usize, &SeedGroup)| {
        json!({
            "name": group.name,
            "runs": group.runs.iter().map(|&run| names[run]).collect::<Vec<_>>(),
            "seeds": comparison.seeds(group),
            "steps": comparison.steps(group),
            "states": comparison.states(group),
            "values": metrics.iter().take(MOST_VALUES).filter_map(|metric| value(group, metric)).collect::<Map<_, _>>(),
            "curves": if i < drawn { curves(group) } else { Map::new() },
        })
    };
    let differences = comparison.differences.iter().map(|d| json!({ "key": d.key, "values": d.values, "divides": d.divides }));
    json!({
        "groups": groups.iter().enumerate().map(view).collect::<Vec<_>>(),
        "has_seeds": has_seeds,
        "differences": differences.collect::<Vec<_>>(),
        "key_metrics": metrics[..*key_metrics],
        // Groups and metrics without curves.
        "omitted_groups": if has_seeds { groups.len() - drawn } else { 0 },
        "omitted_metrics": metrics.len() - shown.len(),
        "notes": notes,
    })
}

fn spread(SeedSpread { mean, deviation }: SeedSpread) -> Value {
    json!({ "mean": mean, "deviation": deviation })
}
