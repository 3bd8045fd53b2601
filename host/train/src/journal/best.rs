//! The best checkpoint and the metric that determines it.

use crate::Error;
use crate::config::{self, RunConfig};
use serde::{Deserialize, Serialize};

/// Metrics of the policy's updates, which evaluations lack.
pub(crate) const UPDATE_METRICS: [&str; 3] = ["grad_norm", "learning_rate", "num_tokens"];

/// Metrics of a critic's updates, which evaluations lack.
pub(crate) const CRITIC_METRICS: [&str; 2] = ["critic_grad_norm", "critic_learning_rate"];

/// The best checkpoint so far.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct BestCheckpoint {
    pub step: u64,
    /// Value of `metric_for_best_model`.
    pub value: f64,
}

/// Returns the error for a metric that a run lacks. It lists the run's metrics, and those of its evaluations if there are any.
pub(crate) fn no_such_metric(settings: &RunConfig, name: &str, names: &[&str]) -> Error {
    let prefix = if name.starts_with("eval_") { "eval_" } else { "" };
    let names: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
    let meant = config::did_you_mean(name, names.iter().map(String::as_str));
    let of_evaluations = match settings.evaluates() && prefix.is_empty() {
        true => ", and the same with the prefix eval_ for evaluations",
        false => "",
    };
    let detail = format!("no metric is named {name:?}; the metrics are {}{of_evaluations}{meant}", names.join(", "));
    Error::setting("metric_for_best_model", detail)
}
