//! Figures of a run: exact averages over micro-batches and the logging window, and where they
//! are written. Only this room averages.

mod comparison;
mod tensorboard;
mod window;
mod writer;

pub use comparison::Comparison;
pub use tensorboard::{TensorBoard, code_block};
pub use window::{Metric, Reduction, Window};
pub use writer::{Line, Lines};
