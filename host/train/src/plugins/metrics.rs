//! Metrics that plugins report.

use crate::metrics::{Metric, Reduction};
use crate::plugin;

/// Converts a plugin's metrics to the window's.
pub(crate) fn from_plugin(metrics: Vec<plugin::Metric>) -> Vec<Metric> {
    let reduction = |of| match of {
        plugin::Reduction::Mean => Reduction::Mean,
        plugin::Reduction::Sum => Reduction::Sum,
        plugin::Reduction::Min => Reduction::Min,
        plugin::Reduction::Max => Reduction::Max,
    };
    let metric = |m: plugin::Metric| Metric { name: m.name, value: m.value, weight: m.weight, reduction: reduction(m.reduction) };
    metrics.into_iter().map(metric).collect()
}
