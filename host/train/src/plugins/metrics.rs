//! Metrics that plugins report.

use crate::metrics::{Metric, MetricReduction};
use crate::plugin;

/// Converts a plugin's metrics to those of the window.
pub(crate) fn from_plugin(metrics: Vec<plugin::Metric>) -> Vec<Metric> {
    let reduction = |of| match of {
        plugin::Reduction::Mean => MetricReduction::Mean,
        plugin::Reduction::Sum => MetricReduction::Sum,
        plugin::Reduction::Min => MetricReduction::Min,
        plugin::Reduction::Max => MetricReduction::Max,
    };
    let metric = |m: plugin::Metric| Metric { name: m.name, value: m.value, weight: m.weight, reduction: reduction(m.reduction) };
    metrics.into_iter().map(metric).collect()
}
