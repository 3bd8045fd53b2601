//! AdamW over named parameters, learning-rate schedules and gradient clipping.

mod adamw;
mod schedule;

pub use adamw::{AdamW, Named, Settings, Update};
pub use schedule::Schedule;
