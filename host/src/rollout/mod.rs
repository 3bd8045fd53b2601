//! Generation: prompts in, completions with their log-probabilities out. Sees only the frozen
//! view of the model.

#[cfg(feature = "cuda")]
mod device;
mod scheduler;

pub use crate::ops::sampler::Sampling;
pub use scheduler::{Generator, Request, Rollout};

/// What generation can fail with.
pub type Error = crate::model::Error;
