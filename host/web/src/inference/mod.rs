//! Clients of inference servers: vLLM, SGLang and `rlhost serve`. Completions are requested by token ids and returned as token ids with
//! log-probabilities; weights are replaced while the server runs.

mod client;
mod completion;
mod failure;
mod scoring;
mod server;
mod sglang;
mod weights;

pub use client::{InferenceClient, RequestTimeout};
pub use completion::{Completion, CompletionRequest, RandomStreamId, SamplingParameters, VersionSpan};
pub use failure::InferenceFailure;
pub use scoring::TokenScore;
pub use server::{ServerDescription, ServerKind};
pub use weights::WeightInfo;
