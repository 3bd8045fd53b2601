//! Optimizers over named parameters, learning-rate schedules and gradient clipping.

mod moments;
mod optimizer;
mod plateau;
mod schedule;

pub use optimizer::{Named, Optimizer, Prepared, Ready, Settings, Update};
pub use plateau::Plateau;
pub use schedule::Schedule;
