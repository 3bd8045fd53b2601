//! Optimizers over named parameters, learning-rate schedules and gradient clipping.

mod moments;
mod optimizer;
mod plateau;
mod schedule;
mod settings;

pub use optimizer::{Named, Optimizer, Prepared, Ready, Update};
pub use plateau::Plateau;
pub use schedule::Schedule;
pub use settings::Settings;
