//! Curves: metrics of one or more runs, reduced to as many points as a screen shows.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use crate::store::{PATIENCE, locked};
use rlhost_live::{CurveAxis, CurveQuery};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Maximum numbers of points per curve, of runs and of metrics.
const MOST_POINTS: usize = 4000;
const USUAL_POINTS: usize = 600;
const MOST_RUNS: usize = 64;
const MOST_METRICS: usize = 500;

impl PageApi {
    /// Answers `run=NAME...&metric=NAME...&x=step&points=600&from=0&to=10`. Without metrics, sends all.
    pub(super) fn series(&self, query: &Query) -> Result<Value> {
        let axis = match query.get("x").unwrap_or("step") {
            "step" => CurveAxis::Step,
            "time" => CurveAxis::Time,
            "tokens" => CurveAxis::Tokens,
            other => return Err(ApiRefusal::invalid(format!("x must be step, time or tokens, not {other:?}"))),
        };
        let points = query.count("points", USUAL_POINTS, MOST_POINTS)?.max(2);
        let ends = (query.number("from")?.unwrap_or(f64::NEG_INFINITY), query.number("to")?.unwrap_or(f64::INFINITY));
        let metrics: Vec<&str> = query.all("metric").take(MOST_METRICS).collect();
        let wanted = |name: &str| metrics.is_empty() || metrics.contains(&name);
        let names: Vec<&str> = query.all("run").collect();
        if names.is_empty() || names.len() > MOST_RUNS {
            return Err(ApiRefusal::invalid(format!("name the runs: run=NAME, at most {MOST_RUNS} times")));
        }
        let until = Instant::now() + 2 * PATIENCE;
        let (mut runs, mut complete) = (Map::new(), true);
        for name in names {
            let run = self.store.run(&self.path(name)?);
            let mut run = locked(&run);
            complete &= run.advance(until)?;
            let breaks = run.breaks();
            let sampled = run.metrics.sample(&wanted, &CurveQuery { axis, ends, points, breaks: &breaks });
            let value = json!({
                "x": sampled.x,
                "steps": sampled.steps,
                "times": sampled.times,
                "kinds": sampled.kinds,
                "breaks": breaks,
                "series": sampled.series,
                "per_point": sampled.per_point,
                "rows": run.metrics.steps.len(),
                "generation": run.metrics.generation,
                "left_out": run.metrics.left_out,
            });
            runs.insert(name.to_owned(), value);
        }
        Ok(json!({ "runs": runs, "complete": complete }))
    }
}
