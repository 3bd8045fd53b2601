//! Generation: turns prompts into completions with their log-probabilities. Uses only the frozen view of the model.

mod asking;
mod branch;
#[cfg(feature = "cuda")]
mod device;
mod following;
mod generator;
mod scheduler;
mod trajectory;

pub use crate::ops::sampler::Sampling;
pub use branch::{Branch, Piece, pieces};
pub use following::{Ended, Follow, Next};
pub use generator::{Generator, Request, Rollout};
pub use trajectory::{Call, Trajectory};

/// Errors of generation.
pub type Error = crate::model::Error;
