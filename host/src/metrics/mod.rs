//! Figures of a run: exact averages over micro-batches and the logging window, and where they
//! are written or shown. Only this room averages.

mod comparison;
mod prometheus;
mod tensorboard;
mod window;
mod writer;

pub use comparison::Comparison;
pub use prometheus::Prometheus;
pub use tensorboard::{TensorBoard, code_block};
pub use window::{Metric, Reduction, Window, is_of_machine};
pub use writer::{Line, Lines};

/// This machine's name, where it says it.
fn host_name() -> String {
    let said = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    said.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".into())
}
