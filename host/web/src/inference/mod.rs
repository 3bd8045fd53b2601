//! Inference servers as a client sees them: vLLM and `rlhost serve`. Completions are asked for by token ids and come back as token
//! ids with log-probabilities; weights are replaced while a server runs.

mod client;
mod completion;
mod failure;
mod server;
mod weights;

pub use client::{Client, Patience};
pub use completion::{Completion, CompletionRequest, RandomStream, SamplingParameters, Span};
pub use failure::Failure;
pub use server::{Kind, Server};
pub use weights::WeightInfo;
