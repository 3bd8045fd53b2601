//! Chooses `metric_for_best_model`. If all plugins ship with the host, a metric that the run will not have is refused before anything is
//! written; metrics of other plugins are known only after the first step.

use super::plugins::LoadedPlugins;
use crate::Result;
use crate::config::{PluginEntry, RunConfig};
use crate::flow::MetricsPlan;
use crate::journal::{CRITIC_METRICS, UPDATE_METRICS, no_such_metric};
use crate::origin::StartMode;
use crate::plugin::columns::VALUE;
use std::collections::BTreeSet;

/// Prefixes of the names of possible metrics.
const GROUPS: [&str; 4] = ["plugins/", "sampling/", "filter_groups/", "skip_groups/"];

/// Metrics of generated completions.
const COMPLETION_METRICS: [&str; 7] = [
    "completions/clipped_ratio",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
];

/// Returns the named metric, or the default one of a run that should end with its best checkpoint. If the run evaluates, a name without
/// `eval_` stands for the evaluation's metric, as in transformers. A resumed run keeps the metric that it was started with.
///
/// # Errors
/// If the configuration of the resumed run can't be read.
pub(super) fn named(config: &RunConfig, metrics: &MetricsPlan, beginning: &StartMode) -> Result<Option<String>> {
    let by_default = config.load_best_model_at_end.then(|| metrics.usual.0.to_owned());
    let Some(name) = config.metric_for_best_model.clone().or(by_default) else { return Ok(None) };
    if !config.evaluates() || name.starts_with("eval_") {
        return Ok(Some(name));
    }
    let is_kept = match beginning {
        StartMode::Resume { origin, .. } => origin.written()?.metric_for_best_model.as_ref() == Some(&name),
        _ => false,
    };
    Ok(Some(if is_kept { name } else { format!("eval_{name}") }))
}

/// Refuses a `metric_for_best_model` that the run will not have, if all plugins ship with the host. The plugins must have been tried.
pub(super) fn check(config: &RunConfig, plugins: &LoadedPlugins) -> Result<()> {
    let (Some((name, _)), Some(reported)) = (config.best_model_metric(), plugins.reported()) else { return Ok(()) };
    let plain = name.strip_prefix("eval_").unwrap_or(name);
    let of_evaluations = plain != name || config.early_stopping_patience.is_some();
    let mut fixed = vec!["loss", "aux_loss"];
    fixed.extend(plugins.metrics.of_pass.names());
    fixed.extend(COMPLETION_METRICS.into_iter().filter(|_| plugins.metrics.of_completions));
    if !of_evaluations {
        fixed.extend(UPDATE_METRICS);
        fixed.extend(CRITIC_METRICS.into_iter().filter(|_| plugins.info().needs.has(VALUE)));
    }
    let scores = |entry: &PluginEntry| ["mean", "std"].map(|figure| format!("rewards/{}/{figure}", entry.name()));
    let scores = config.plugin.iter().filter(|entry| !entry.eval_only).flat_map(scores);
    let names: BTreeSet<String> = fixed.into_iter().map(str::to_owned).chain(scores).chain(reported).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let in_group = GROUPS.iter().any(|group| plain.starts_with(group));
    if names.contains(&plain) || in_group || of_evaluations && config.is_evaluation_metric(plain) {
        return Ok(());
    }
    Err(no_such_metric(config, name, &names))
}
