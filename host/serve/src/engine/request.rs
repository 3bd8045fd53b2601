//! Requests to an engine, and the events that answer them.

use super::adapters::EngineAdapter;
use crate::ops::sampler::Sampler;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use thiserror::Error;

/// Predicate that returns whether the newest of these tokens completes a stop text.
pub type StopPredicate = Arc<dyn Fn(&[u32]) -> bool + Send + Sync>;

/// Request for one completion.
#[derive(Clone)]
pub struct EngineRequest {
    /// Prompt tokens.
    pub tokens: Arc<[u32]>,
    /// Sampling method.
    pub sampling: Sampler,
    /// Values added to the logits of tokens.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Maximum number of sampled tokens; 0 to only read the prompt.
    pub max_tokens: usize,
    /// Random numbers of the completion.
    pub random: RandomStream,
    /// Tokens that end the completion.
    pub ends: Arc<[u32]>,
    /// Predicate for texts that end the completion.
    pub stop: Option<StopPredicate>,
    /// Log-probabilities to report.
    pub scoring: LogprobSettings,
    /// Salt of the prefix cache: requests with different salts never share a prefix.
    pub salt: u64,
    /// Adapter that computes the request; `None` for the engine's own weights.
    pub adapter: Option<Arc<EngineAdapter>>,
}

/// Identifies the random numbers of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomStream {
    /// Seed.
    pub seed: u64,
    /// Generation of a run; 0 for other clients.
    pub generation: u64,
    /// Row of a run's dataset; 0 for other clients.
    pub row: u64,
    /// Index among the completions that share the other fields, so that their numbers differ.
    pub sample: u64,
}

impl RandomStream {
    /// Returns the random numbers of a seed's first completion.
    pub fn from_seed(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Returns the random numbers of `count` completions, beginning with these.
    pub fn samples(self, count: usize) -> impl Iterator<Item = Self> {
        (0..count as u64).map(move |sample| Self { sample: self.sample.wrapping_add(sample), ..self })
    }
}

/// Log-probabilities to report for a request's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogprobSettings {
    /// Number of most likely tokens to report with each token; also computes the token's rank.
    pub alternatives: Option<usize>,
    /// Whether to score the prompt's tokens, that is, report their log-probabilities under the model.
    pub scores_prompt: bool,
    /// Divisor of the logits whose log-probabilities are reported, without filters; `None` to report those of the sampling distribution.
    pub logp_temperature: Option<f32>,
}

impl Debug for EngineRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineRequest")
            .field("tokens", &self.tokens.len())
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// Token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// Token id.
    pub id: u32,
    /// Log-probability under the sampling distribution: of the logits with bias, penalty, temperature and filters or, for greedy decoding,
    /// with bias and penalty only. With [`LogprobSettings::logp_temperature`], of the logits with bias, divided by it. For a token of the
    /// prompt, under the model.
    pub logp: f32,
    /// Number of more likely tokens, plus one; 0 if not requested.
    pub rank: u32,
    /// Most likely tokens with their log-probabilities, in descending order.
    pub top: Vec<(u32, f32)>,
    /// Version of the weights that computed the token.
    pub version: u64,
}

/// Reason why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The last token is an end token of the request.
    End,
    /// The last token completed a stop text.
    Stop,
    /// The completion reached its token limit.
    Length,
    /// A pause ended the completion.
    Abort,
}

/// Event in the life of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// The prompt was read.
    Prompt {
        /// Scored tokens of the prompt, without the first; empty if scores were not requested.
        scored: Vec<ScoredToken>,
        /// Number of prompt tokens found in the cache.
        cached: usize,
    },
    /// A token was sampled.
    Token(ScoredToken),
    /// The completion ended.
    Finished(FinishReason),
    /// The completion failed.
    Failed(String),
}

/// Reason why a request is rejected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RequestRefusal {
    /// The prompt is empty.
    #[error("the prompt has no tokens")]
    Empty,
    /// A token is outside the model's vocabulary.
    #[error("token {token} is unknown; the model has {vocabulary} tokens")]
    UnknownToken {
        /// Unknown token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// Prompt and completion exceed the context length.
    #[error("the prompt has {prompt} tokens and max_tokens is {max_tokens}, but the context is {most} tokens long")]
    TooLong {
        /// Number of prompt tokens.
        prompt: usize,
        /// Maximum number of sampled tokens.
        max_tokens: usize,
        /// Maximum of both together.
        most: usize,
    },
    /// The waiting queue is full.
    #[error("too many requests are waiting; try again later")]
    Full,
    /// The server is about to stop.
    #[error("the server is stopping")]
    Stopping,
    /// The engine's thread has ended.
    #[error("the engine has ended after an error; restart the server")]
    EngineEnded,
}
