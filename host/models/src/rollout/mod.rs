//! Generation: turns prompts into completions with their log-probabilities. Uses only the frozen view of the model.

mod asking;
#[cfg(feature = "cuda")]
mod device;
mod following;
mod generator;
mod scheduler;

pub use crate::ops::sampler::Sampling;
pub use following::{Ended, Follow, Next};
pub use generator::{Generator, Request, Rollout};

/// Errors of generation.
pub type Error = crate::model::Error;
