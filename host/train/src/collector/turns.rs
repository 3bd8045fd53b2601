//! Generates rollouts of one turn (a prompt and its completion), or of several, as [`episodes`](super::episodes) requests.

use super::source::RolloutRequest;
use crate::Result;
use crate::config::RolloutDtype;
use crate::data::{StopStrings, Tokenizer};
use crate::dataset::Prompt;
use crate::model::{IncrementalDecoder, PolicyModel, PromptPass};
use crate::phase::Phase;
use crate::plan::{EpisodeLimits, RolloutPlan};
use crate::rollout::{Generator, PromptRequest, ReplyProvider, Rollout, Sampler};
use std::rc::Rc;
use std::sync::Arc;

/// Settings for generating completions.
pub(crate) struct TurnGenerator {
    plan: Rc<RolloutPlan>,
    tokenizer: Tokenizer,
    /// Ids that end a completion.
    ends: Vec<u32>,
    stops: StopStrings,
}

impl TurnGenerator {
    /// Creates a generator for a model whose configuration lists these end-of-text tokens.
    pub(crate) fn new(plan: Rc<RolloutPlan>, tokenizer: Tokenizer, eos_token_ids: &[u32]) -> Self {
        let mut stop = plan.stop.clone();
        if plan.has_environment && !tokenizer.has_chat() {
            // In the format of models without a template, a turn is a line.
            stop.push("\n".to_owned());
        }
        let (ends, stops) = (tokenizer.eos_ids(eos_token_ids), StopStrings::new(stop));
        Self { plan, tokenizer, ends, stops }
    }

    /// Returns the sampling parameters of training or of evaluations.
    pub(super) fn sampling(&self, phase: Phase) -> Sampler {
        if phase == Phase::Eval { self.plan.sampling.eval } else { self.plan.sampling.train }
    }

    /// Prepares a decoder with the policy's current weights: in `rollout_dtype` for training, unchanged for evaluations.
    pub(super) fn decoding(&self, policy: &PolicyModel, phase: Phase) -> Result<IncrementalDecoder> {
        let weights = if phase == Phase::Eval { RolloutDtype::Auto } else { self.plan.dtype };
        Ok(policy.frozen().decoding_with(weights)?)
    }

    /// Generates single-turn completions. Also returns the pass over the prompts, if it is to be kept and the policy can continue it.
    pub(super) fn roll_out(
        &self,
        model: &IncrementalDecoder,
        request: &RolloutRequest<'_>,
        continues_prompts: bool,
    ) -> Result<(Vec<Rollout>, Option<PromptPass>)> {
        let (samples, keep) = (request.samples, request.keeps_prompt_pass && continues_prompts);
        let of_prompt = |p: &Arc<Prompt>| PromptRequest { tokens: p.tokens.clone(), row: p.row as u64, first: 0, samples };
        let requests: Vec<PromptRequest> = request.prompts.iter().map(of_prompt).collect();
        Ok(self.generator(model, request, None, |generator| generator.run_keeping(&requests, keep))?)
    }

    /// Calls `run` with a generator of completions.
    pub(super) fn generator<T>(
        &self,
        model: &IncrementalDecoder,
        request: &RolloutRequest<'_>,
        follow: Option<&dyn ReplyProvider>,
        run: impl FnOnce(Generator<'_>) -> T,
    ) -> T {
        let (plan, RolloutRequest { sampling, logp_temperature, generation, .. }) = (&self.plan, *request);
        let (strings, tokenizer) = (&self.stops, &self.tokenizer);
        let stops = |tokens: &[u32]| strings.end(tokens, tokenizer);
        run(Generator {
            model,
            sampling,
            logp_temperature,
            keep_support: plan.sampling.scores_support && sampling == self.sampling(Phase::Train) && sampling.changes_support(),
            max_new_tokens: plan.max_completion_length,
            max_num_seqs: plan.max_num_seqs,
            seed: plan.seed,
            generation,
            end_tokens: &self.ends,
            stops: &stops,
            reply_provider: follow,
        })
    }

    /// Returns the rules of episodes for a model with this context length.
    pub(super) fn rules(&self, context: usize) -> EpisodeRules<'_> {
        let RolloutPlan { seed, episode_limits: EpisodeLimits { turns, tokens }, .. } = *self.plan;
        EpisodeRules { tokenizer: &self.tokenizer, seed, max_turns: turns, most_tokens: tokens, context }
    }

    /// Returns a generator with another plan.
    pub(super) fn with_plan(&self, plan: Rc<RolloutPlan>) -> Self {
        let (tokenizer, ends, stops) = (self.tokenizer.clone(), self.ends.clone(), self.stops.clone());
        Self { plan, tokenizer, ends, stops }
    }

    /// Returns the tokenizer.
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the ids that end a completion.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Returns the text of a completion.
    pub(super) fn text(&self, rollout: &Rollout) -> Result<String> {
        Ok(self.tokenizer.decode(&rollout.tokens)?)
    }
}

/// Data shared by all episodes of a run.
pub(super) struct EpisodeRules<'a> {
    pub tokenizer: &'a Tokenizer,
    pub seed: u64,
    pub max_turns: usize,
    pub most_tokens: usize,
    /// Length of the model's context.
    pub context: usize,
}
