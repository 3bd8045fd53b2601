//! Inference servers as a client sees them: vLLM and `rlhost serve`. Completions are asked for by token ids and come back as token
//! ids with log-probabilities; weights are replaced while a server runs.

mod client;
mod completion;
mod failure;
mod server;
mod weights;

pub use client::{InferenceClient, RequestTimeout};
pub use completion::{Completion, CompletionRequest, RandomStreamId, SamplingParameters, VersionSpan};
pub use failure::InferenceFailure;
pub use server::{ServerDescription, ServerKind};
pub use weights::WeightInfo;
