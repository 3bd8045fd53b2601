//! Early stopping, as in transformers' `EarlyStoppingCallback`: a run ends if its evaluations have not improved for a while.

use super::plan::EvaluationPlan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// History of evaluations. It is part of checkpoints, so that a resumed run stops at the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct EarlyStoppingState {
    /// The best value of `metric_for_best_model`.
    best: Option<f64>,
    /// Number of consecutive evaluations that did not improve on the best by more than the threshold.
    without: u64,
}

impl EarlyStoppingState {
    /// Returns the state after an evaluation with these metrics. As in transformers, an evaluation before the first step does not
    /// count.
    pub(super) fn after(mut self, plan: &EvaluationPlan, step: u64, figures: &BTreeMap<String, f64>) -> Self {
        let (metric, greater) = &plan.metric;
        let value = figures.get(&format!("eval_{metric}"));
        if let (Some(stopping), Some(value)) = (plan.early_stopping.filter(|_| step > 0), value) {
            self.observe(*value, *greater, stopping.threshold);
        }
        self
    }

    fn observe(&mut self, value: f64, greater: bool, threshold: f64) {
        let better = |best: f64| if greater { value > best } else { value < best };
        let enough = self.best.is_none_or(|best| better(best) && (value - best).abs() > threshold);
        self.without = if enough { 0 } else { self.without.saturating_add(1) };
        // Any improvement updates the best value, however small.
        if value.is_finite() && self.best.is_none_or(better) {
            self.best = Some(value);
        }
    }

    /// Returns the number of evaluations without improvement if the run should end.
    pub(super) fn is_lost(&self, plan: &EvaluationPlan) -> Option<u64> {
        plan.early_stopping.filter(|stopping| self.without >= stopping.patience).map(|_| self.without)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;
    use crate::flow::Flow;
    use serde_json::Value;

    /// Expected values created by `make_early_stopping.py` in this folder, with transformers' callback.
    #[test]
    fn a_run_stops_where_transformers_would() {
        let cases: Value = serde_json::from_str(include_str!("../../../tests/fixtures/early_stopping.json")).unwrap();
        let mut early = 0;
        for case in cases.as_array().unwrap() {
            let settings = RunConfig {
                early_stopping_patience: case["patience"].as_u64(),
                early_stopping_threshold: case["threshold"].as_f64().unwrap(),
                metric_for_best_model: Some("eval_x".into()),
                greater_is_better: case["greater"].as_bool(),
                ..RunConfig::default()
            };
            let settings = EvaluationPlan::new(&settings, &Flow::with_generation(false).metrics(), 1);
            let (mut patience, mut stopped, mut counters) = (EarlyStoppingState::default(), None, Vec::new());
            for (at, value) in case["values"].as_array().unwrap().iter().enumerate() {
                let figures = BTreeMap::from([("eval_x".to_owned(), value.as_f64().unwrap())]);
                assert_eq!(patience.after(&settings, 0, &figures), patience, "before training");
                patience = patience.after(&settings, at as u64 + 1, &figures);
                counters.push(patience.without);
                // Simulates resuming after each evaluation.
                patience = serde_json::from_str(&serde_json::to_string(&patience).unwrap()).unwrap();
                if patience.is_lost(&settings).is_some() {
                    stopped = Some(at as u64);
                    break;
                }
            }
            early += u64::from(stopped.is_some());
            assert_eq!((stopped, serde_json::json!(counters)), (case["stopped"].as_u64(), case["counters"].clone()), "{case}");
        }
        assert!((10..60).contains(&early), "{early}");
    }
}
