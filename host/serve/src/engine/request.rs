//! What an engine is asked for, and what it answers.

use super::adapters::EngineAdapter;
use crate::ops::sampler::Sampler;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use thiserror::Error;

/// Returns whether the newest of these tokens completes a text that ends the completion.
pub type StopPredicate = Arc<dyn Fn(&[u32]) -> bool + Send + Sync>;

/// A completion to be sampled.
#[derive(Clone)]
pub struct EngineRequest {
    /// The prompt.
    pub tokens: Arc<[u32]>,
    /// How tokens are sampled.
    pub sampling: Sampler,
    /// Added to the logits of tokens.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Maximum number of sampled tokens; with 0, the prompt is only read.
    pub max_tokens: usize,
    /// Its random numbers.
    pub random: RandomStream,
    /// Tokens that end it.
    pub ends: Arc<[u32]>,
    /// Texts that end it.
    pub stop: Option<StopPredicate>,
    /// What is reported of its tokens.
    pub scoring: LogprobSettings,
    /// Requests with different salts never share a prefix.
    pub salt: u64,
    /// The adapter that computes it; none for the engine's own weights.
    pub adapter: Option<Arc<EngineAdapter>>,
}

/// Which random numbers a completion has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomStream {
    /// The seed.
    pub seed: u64,
    /// A run's generation; 0 for other clients.
    pub generation: u64,
    /// The row of a run's dataset; 0 for other clients.
    pub row: u64,
    /// Index among the completions that have the rest in common, whose numbers differ.
    pub sample: u64,
}

impl RandomStream {
    /// Returns the numbers of a seed's first completion.
    pub fn from_seed(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Returns the numbers of so many completions, this one being the first.
    pub fn samples(self, count: usize) -> impl Iterator<Item = Self> {
        (0..count as u64).map(move |sample| Self { sample: self.sample.wrapping_add(sample), ..self })
    }
}

/// What is reported of a request's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogprobSettings {
    /// Number of the most likely tokens to report with each token, whose rank is then computed too.
    pub alternatives: Option<usize>,
    /// Whether the prompt's tokens are scored: their log-probabilities under the model.
    pub scores_prompt: bool,
    /// Divisor of the logits whose log-probabilities are reported, without filters; none for those of the sampling distribution.
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

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the distribution that it was sampled from: of the logits with bias, penalty, temperature and filters,
    /// or, for greedy decoding, with bias and penalty only; unless the request has a [`LogprobSettings::logp_temperature`]. A prompt's token:
    /// under the model.
    pub logp: f32,
    /// Number of tokens that were more likely, plus one; 0 if it was not asked for.
    pub rank: u32,
    /// The most likely tokens with their log-probabilities, the likeliest first.
    pub top: Vec<(u32, f32)>,
    /// Version of the weights that it was computed with.
    pub version: u64,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// Its last token is one of the request's end tokens.
    End,
    /// Its last token completed a text that ends it.
    Stop,
    /// It has the maximum number of tokens.
    Length,
    /// A pause ended it.
    Abort,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// The prompt was read; its tokens without the first, if they were to be scored. So many tokens were found in the cache.
    Prompt {
        /// The scored tokens.
        scored: Vec<ScoredToken>,
        /// Number of tokens that were not computed anew.
        cached: usize,
    },
    /// A token was sampled.
    Token(ScoredToken),
    /// The completion ended.
    Finished(FinishReason),
    /// It can't be continued.
    Failed(String),
}

/// Why a request is not served.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RequestRefusal {
    /// The prompt is empty.
    #[error("the prompt has no tokens")]
    Empty,
    /// A token is not the model's.
    #[error("token {token} is unknown; the model has {vocabulary} tokens")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Number of the model's tokens.
        vocabulary: usize,
    },
    /// Prompt and completion exceed the context.
    #[error("the prompt has {prompt} tokens and max_tokens is {max_tokens}, but the context is {most} tokens long")]
    TooLong {
        /// Number of the prompt's tokens.
        prompt: usize,
        /// Maximum number of sampled tokens.
        max_tokens: usize,
        /// Maximum of both together.
        most: usize,
    },
    /// Too many requests wait.
    #[error("too many requests are waiting; try again later")]
    Full,
    /// The server is about to stop.
    #[error("the server is stopping")]
    Stopping,
    /// The engine's thread has ended.
    #[error("the engine has ended after an error; restart the server")]
    EngineEnded,
}
