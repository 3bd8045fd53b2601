//! Generation: samples completions of prompts with their log-probabilities. Uses only the frozen view of the model.

mod branch;
#[cfg(feature = "cuda")]
mod device;
mod generator;
mod reply_provider;
mod reply_requests;
mod scheduler;
mod trajectory;

pub use crate::ops::sampler::Sampler;
pub use branch::{Branch, RowSegment, pieces};
pub use generator::{Generator, PromptRequest, Rollout};
pub use reply_provider::{EndedTurn, ReplyProvider, TurnReply};
pub use trajectory::{AgentCall, Trajectory};

/// Errors of generation.
pub type Error = crate::model::Error;
