//! AdamW over named parameters, learning-rate schedules and gradient clipping.

mod adamw;
mod plateau;
mod schedule;

pub use adamw::{AdamW, Named, Prepared, Ready, Settings, Update};
pub use plateau::Plateau;
pub use schedule::Schedule;
