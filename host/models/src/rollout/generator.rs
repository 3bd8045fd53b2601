//! Inputs and outputs of a generation.

use super::branch::Branch;
use super::reply_provider::ReplyProvider;
use crate::model::IncrementalDecoder;
use crate::ops::Forest;
use crate::ops::sampler::Sampler;
use crate::ops::support::Support;
use crate::ops::top_divergence::LikelyToken;
use serde::{Deserialize, Serialize};

/// Maximum number of prompt tokens per prefill; a longer prompt is prefilled alone.
const PREFILL_TOKENS: usize = 8192;

/// A prompt to complete.
#[derive(Clone, Debug)]
pub struct PromptRequest {
    /// Token ids of the prompt, at least one.
    pub tokens: Vec<u32>,
    /// Row of the dataset. It seeds the random numbers.
    pub row: u64,
    /// Index of the first completion among those of the row.
    pub first: usize,
    /// Number of completions.
    pub samples: usize,
}

/// A completion.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Rollout {
    /// Index of the request.
    pub prompt: usize,
    /// Index of this completion among the row's.
    pub sample: usize,
    /// Token ids, including the end token.
    pub tokens: Vec<u32>,
    /// Log-probability of each token when it was sampled; 0 for tokens of replies.
    pub logp: Vec<f32>,
    /// Whether the completion ended on its own rather than at the length limit.
    pub finished: bool,
    /// Version of the policy that generated the completion, in updates.
    #[serde(default)]
    pub policy_version: u64,
    /// Start and end of each reply, whose tokens were not sampled.
    #[serde(default)]
    pub replies: Vec<(usize, usize)>,
    /// The prompt that the rollout continues, if not the row's.
    #[serde(default)]
    pub opening: Option<Vec<u32>>,
    /// The prompt that a teacher reads before the completion, if the algorithm wrote one.
    #[serde(default)]
    pub teacher_prompt: Option<Vec<u32>>,
    /// The teacher's likeliest tokens in place of each token, if it is asked for these.
    #[serde(default)]
    pub likely_tokens: Option<Vec<Vec<LikelyToken>>>,
    /// The rollout's branches.
    #[serde(default)]
    pub branches: Vec<Branch>,
    /// The tokens that could be sampled in place of each token, if log-probabilities are computed among those.
    #[serde(default)]
    pub support: Option<Support>,
}

impl Rollout {
    /// Returns 1 for each sampled token and 0 for each token of a reply.
    pub fn mask(&self) -> Vec<u8> {
        let mut mask = vec![1; self.tokens.len()];
        for &(begin, end) in &self.replies {
            mask[begin..end].fill(0);
        }
        mask
    }

    /// Appends a reply and returns the index at which the next turn begins.
    pub(super) fn read(&mut self, reply: Vec<u32>) -> usize {
        let (begin, end) = (self.tokens.len(), self.tokens.len() + reply.len());
        self.replies.push((begin, end));
        self.logp.resize(end, 0.0);
        self.support.iter_mut().for_each(|support| support.skip_to(end));
        self.tokens.extend(reply);
        end
    }

    /// Returns the number of sampled tokens.
    pub fn sampled(&self) -> usize {
        self.tokens.len() - self.replies.iter().map(|(begin, end)| end - begin).sum::<usize>()
    }
}

/// A model and the settings with which it generates.
pub struct Generator<'a> {
    /// The model.
    pub model: &'a IncrementalDecoder,
    /// Sampling of tokens.
    pub sampling: Sampler,
    /// Temperature of the recorded log-probabilities.
    pub logp_temperature: f32,
    /// Whether log-probabilities are computed among the tokens that could be sampled, as in sampling; each rollout then records those
    /// tokens.
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
    /// Returns whether the newest token completes a stop text.
    pub stops: &'a (dyn Fn(&[u32]) -> bool + Sync),
    /// Provides the reply to a turn. Without it, completions have one turn.
    pub reply_provider: Option<&'a dyn ReplyProvider>,
}

impl Generator<'_> {
    /// Returns whether the last of these tokens ends the turn.
    pub(super) fn ends(&self, tokens: &[u32]) -> bool {
        tokens.last().is_some_and(|newest| self.end_tokens.contains(newest)) || (self.stops)(tokens)
    }

    /// Returns the maximum number of tokens of a sequence after the turn that begins at index `begin`.
    pub(super) fn limit_of_turn(&self, request: &PromptRequest, begin: usize) -> usize {
        (begin + self.max_new_tokens).min(self.max_tokens(request)).max(begin + 1)
    }

    /// Returns the maximum number of tokens of a sequence, over all turns and replies.
    pub(super) fn max_tokens(&self, request: &PromptRequest) -> usize {
        let context = self.model.architecture().max_positions.saturating_sub(request.tokens.len());
        self.reply_provider.map_or(context, |follow| follow.max_tokens().min(context))
    }

    /// Returns the maximum number of tokens of a sequence, whatever its replies are.
    #[cfg(feature = "cuda")]
    pub(super) fn limit(&self, request: &PromptRequest) -> usize {
        let of_turn = self.limit_of_turn(request, 0);
        self.reply_provider.map_or(of_turn, |_| self.max_tokens(request).max(of_turn))
    }

    /// Returns whether a reply leaves room for another token.
    pub(super) fn has_room(&self, request: &PromptRequest, rollout: &Rollout, reply: &[u32]) -> bool {
        rollout.tokens.len() + reply.len() < self.max_tokens(request)
    }
}

/// Index of a prompt and of one of its completions.
pub(super) type SampleIndex = (usize, usize);

/// Groups prompts to be prefilled together. Returns each group with its forest.
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
