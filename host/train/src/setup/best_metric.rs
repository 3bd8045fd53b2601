//! Chooses `metric_for_best_model`. If all plugins ship with the host, refuses one that the run will not have before anything is
//! written; metrics of other plugins are known only after the first step.

use super::plugins::Loaded;
use crate::Result;
use crate::config::{Config, PluginEntry};
use crate::flow::MetricsPlan;
use crate::journal::{OF_CRITIC, OF_UPDATES, no_such_metric};
use crate::origin::Beginning;
use crate::plugin::columns::VALUE;
use std::collections::BTreeSet;

/// Prefixes of the names of possible metrics.
const GROUPS: [&str; 4] = ["plugins/", "sampling/", "filter_groups/", "skip_groups/"];

/// Metrics of generated completions.
const OF_COMPLETIONS: [&str; 7] = [
    "completions/clipped_ratio",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
];

/// Returns the metric that is named, or that of a run that is to end with its best checkpoint. If the run evaluates, a name without `eval_` means the
/// evaluation's, as in transformers. A resumed run keeps the metric that it was written with.
///
/// # Errors
/// If the configuration of the run that resumes can't be read.
pub(super) fn named(config: &Config, metrics: &MetricsPlan, beginning: &Beginning) -> Result<Option<String>> {
    let by_default = config.load_best_model_at_end.then(|| metrics.usual.0.to_owned());
    let Some(name) = config.metric_for_best_model.clone().or(by_default) else { return Ok(None) };
    if !config.evaluates() || name.starts_with("eval_") {
        return Ok(Some(name));
    }
    let is_kept = match beginning {
        Beginning::Resume { origin, .. } => origin.written()?.metric_for_best_model.as_ref() == Some(&name),
        _ => false,
    };
    Ok(Some(if is_kept { name } else { format!("eval_{name}") }))
}

/// Refuses a `metric_for_best_model` that the run will not have, if all plugins ship with the host. The plugins have been tried.
pub(super) fn check(config: &Config, plugins: &Loaded) -> Result<()> {
    let (Some((name, _)), Some(reported)) = (config.best_by(), plugins.reported()) else { return Ok(()) };
    let plain = name.strip_prefix("eval_").unwrap_or(name);
    let of_evaluations = plain != name || config.early_stopping_patience.is_some();
    let mut fixed = vec!["loss", "aux_loss"];
    fixed.extend(plugins.metrics.of_pass.names());
    fixed.extend(OF_COMPLETIONS.into_iter().filter(|_| plugins.metrics.of_completions));
    if !of_evaluations {
        fixed.extend(OF_UPDATES);
        fixed.extend(OF_CRITIC.into_iter().filter(|_| plugins.about().needs.has(VALUE)));
    }
    let scores = |entry: &PluginEntry| ["mean", "std"].map(|figure| format!("rewards/{}/{figure}", entry.name()));
    let scores = config.plugin.iter().filter(|entry| !entry.eval_only).flat_map(scores);
    let names: BTreeSet<String> = fixed.into_iter().map(str::to_owned).chain(scores).chain(reported).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let in_group = GROUPS.iter().any(|group| plain.starts_with(group));
    if names.contains(&plain) || in_group || of_evaluations && config.is_of_evaluations(plain) {
        return Ok(());
    }
    Err(no_such_metric(config, name, &names))
}
