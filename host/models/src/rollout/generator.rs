//! What a generation takes and returns.

use super::branch::Branch;
use super::reply_provider::ReplyProvider;
use crate::model::IncrementalDecoder;
use crate::ops::Forest;
use crate::ops::sampler::Sampler;
use crate::ops::support::Support;
use serde::{Deserialize, Serialize};

/// Maximum number of prompt tokens per prefill (a longer prompt is prefilled alone).
const PREFILL_TOKENS: usize = 8192;

/// A prompt to complete.
#[derive(Clone, Debug)]
pub struct PromptRequest {
    /// Its tokens, at least one.
    pub tokens: Vec<u32>,
    /// Row of the dataset, which seeds the random numbers.
    pub row: u64,
    /// Index of its first completion among those of the row.
    pub first: usize,
    /// Number of completions.
    pub samples: usize,
}

/// A completion.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Rollout {
    /// Index of its request.
    pub prompt: usize,
    /// Its index among the row's completions.
    pub sample: usize,
    /// Its tokens, including the end token.
    pub tokens: Vec<u32>,
    /// Log-probability of each token when it was sampled; 0 for those of replies.
    pub logp: Vec<f32>,
    /// Whether it ended on its own rather than at the length limit.
    pub finished: bool,
    /// Number of updates that made the policy which wrote it.
    #[serde(default)]
    pub policy_version: u64,
    /// Start and end of each reply among its tokens, which were not sampled.
    #[serde(default)]
    pub replies: Vec<(usize, usize)>,
    /// The prompt that it continues, if not its row's.
    #[serde(default)]
    pub opening: Option<Vec<u32>>,
    /// Where its tokens continue an earlier place rather than the token before, by the index of their first token.
    #[serde(default)]
    pub branches: Vec<Branch>,
    /// The tokens that could be sampled in place of each of its own, if it is scored among those.
    #[serde(default)]
    pub support: Option<Support>,
}

impl Rollout {
    /// Returns 1 for each token that was sampled, and 0 for those of replies.
    pub fn mask(&self) -> Vec<u8> {
        let mut mask = vec![1; self.tokens.len()];
        for &(begin, end) in &self.replies {
            mask[begin..end].fill(0);
        }
        mask
    }

    /// Appends a reply; returns where the next turn begins.
    pub(super) fn read(&mut self, reply: Vec<u32>) -> usize {
        let (begin, end) = (self.tokens.len(), self.tokens.len() + reply.len());
        self.replies.push((begin, end));
        self.logp.resize(end, 0.0);
        self.support.iter_mut().for_each(|support| support.skip_to(end));
        self.tokens.extend(reply);
        end
    }

    /// Returns the number of tokens that were sampled.
    pub fn sampled(&self) -> usize {
        self.tokens.len() - self.replies.iter().map(|(begin, end)| end - begin).sum::<usize>()
    }
}

/// Settings of a generation.
pub struct Generator<'a> {
    /// The model.
    pub model: &'a IncrementalDecoder,
    /// How tokens are sampled.
    pub sampling: Sampler,
    /// Temperature of the recorded log-probabilities.
    pub logp_temperature: f32,
    /// Whether log-probabilities are those of the sampling distribution, among the tokens that could be sampled; each rollout
    /// then keeps those tokens.
    pub keep_support: bool,
    /// Maximum length of a turn in tokens; the model's context may end it earlier.
    pub max_new_tokens: usize,
    /// Maximum number of sequences decoded in parallel.
    pub max_num_seqs: usize,
    /// The run's seed.
    pub seed: u64,
    /// Index of this generation in the run.
    pub generation: u64,
    /// Ids of tokens that end a completion.
    pub end_tokens: &'a [u32],
    /// Whether the newest token completes a stop string.
    pub stops: &'a (dyn Fn(&[u32]) -> bool + Sync),
    /// Provides what follows a turn; without it, completions have one turn.
    pub reply_provider: Option<&'a dyn ReplyProvider>,
}

impl Generator<'_> {
    /// Returns whether the newest of these tokens ends the completion.
    pub(super) fn ends(&self, tokens: &[u32]) -> bool {
        tokens.last().is_some_and(|newest| self.end_tokens.contains(newest)) || (self.stops)(tokens)
    }

    /// Returns the maximum number of tokens that a sequence may have after the turn that begins at this one.
    pub(super) fn limit_of_turn(&self, request: &PromptRequest, begin: usize) -> usize {
        (begin + self.max_new_tokens).min(self.max_tokens(request)).max(begin + 1)
    }

    /// Returns the number of tokens for which a sequence has room, all turns and replies together.
    pub(super) fn max_tokens(&self, request: &PromptRequest) -> usize {
        let context = self.model.architecture().max_positions.saturating_sub(request.tokens.len());
        self.reply_provider.map_or(context, |follow| follow.max_tokens().min(context))
    }

    /// Returns the maximum number of tokens of a sequence, whatever is replied.
    #[cfg(feature = "cuda")]
    pub(super) fn limit(&self, request: &PromptRequest) -> usize {
        let of_turn = self.limit_of_turn(request, 0);
        self.reply_provider.map_or(of_turn, |_| self.max_tokens(request).max(of_turn))
    }

    /// Returns whether a reply leaves room for a token.
    pub(super) fn has_room(&self, request: &PromptRequest, rollout: &Rollout, reply: &[u32]) -> bool {
        rollout.tokens.len() + reply.len() < self.max_tokens(request)
    }
}

/// Indices of a prompt and of one of its completions.
pub(super) type SampleIndex = (usize, usize);

/// Groups prompts that are prefilled together, each group with its forest.
pub(super) fn batches<'a>(requests: &[PromptRequest], prompts: &'a [usize]) -> Vec<(Forest, &'a [usize])> {
    let mut rest = prompts;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let mut forest = Forest::new();
        let mut taken = 0;
        while taken < rest.len() && (taken == 0 || forest.len() + requests[rest[taken]].tokens.len() <= PREFILL_TOKENS) {
            forest.push(&requests[rest[taken]].tokens, None);
            taken += 1;
        }
        all.push((forest, &rest[..taken]));
        rest = &rest[taken..];
    }
    all
}
