//! The metrics of a run: exact averages over micro-batches and the logging window, and their outputs. Only this module averages.

mod comparison;
mod hosts;
mod prometheus;
mod tensorboard;
mod window;
mod writer;

pub use comparison::ScoreComparison;
pub use hosts::AllowedHosts;
pub use prometheus::Prometheus;
pub use tensorboard::{TensorBoard, code_block};
pub use window::{Metric, MetricReduction, MetricsWindow, is_of_machine};
pub use writer::{JsonLinesWriter, LogLine};

/// Returns this machine's name, if known.
fn host_name() -> String {
    let said = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    said.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".into())
}
