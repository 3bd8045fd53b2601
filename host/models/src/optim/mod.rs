//! Optimizers over named parameters, learning-rate schedules and gradient clipping.

mod moments;
mod optimizer;
mod plateau;
mod schedule;
mod settings;

pub use optimizer::{FiniteUpdate, NamedTensors, Optimizer, UpdateOutcome, UpdatePreparation};
pub use plateau::PlateauDetector;
pub use schedule::LearningRateSchedule;
pub use settings::OptimizerSettings;
