//! Generates rollouts: with one turn, a prompt and its completion, or with several, as [`episodes`](super::episodes) requests.

use super::episodes::Rules;
use super::source::RolloutRequest;
use crate::config::{Config, RolloutDtype};
use crate::data::{StopStrings, Tokenizer};
use crate::model::{Decoding, Policy, PromptPass};
use crate::rollout::{Follow, Generator, Request, Rollout, Sampling};
use crate::train::Result;
use crate::train::dataset::Prompt;
use crate::train::phase::Phase;
use std::rc::Rc;
use std::sync::Arc;

/// Settings for generating completions.
pub(in crate::train) struct Turns {
    settings: Rc<Config>,
    tokenizer: Tokenizer,
    /// Ids that end a completion.
    ends: Vec<u32>,
    stops: StopStrings,
}

impl Turns {
    /// Creates it for a model whose configuration lists these end-of-text tokens.
    pub(in crate::train) fn new(settings: Rc<Config>, tokenizer: Tokenizer, eos_token_ids: &[u32]) -> Self {
        let mut stop = settings.stop.clone();
        if !settings.environment.is_empty() && !tokenizer.has_chat() {
            // In the format of models without a template, a turn is a line.
            stop.push("\n".to_owned());
        }
        let (ends, stops) = (tokenizer.eos_ids(eos_token_ids), StopStrings::new(stop));
        Self { settings, tokenizer, ends, stops }
    }

    /// Returns how tokens are sampled in training or in evaluations.
    pub(super) fn sampling(&self, phase: Phase) -> Sampling {
        let c = &self.settings;
        let mut sampling = Sampling {
            temperature: c.temperature as f32,
            top_p: c.top_p as f32,
            top_k: c.top_k,
            min_p: c.min_p.unwrap_or(0.0) as f32,
            repetition_penalty: c.repetition_penalty as f32,
        };
        if phase == Phase::Eval {
            sampling.temperature = c.eval_temperature.unwrap_or(c.temperature) as f32;
            sampling.top_p = c.eval_top_p.unwrap_or(c.top_p) as f32;
            sampling.top_k = c.eval_top_k.unwrap_or(c.top_k);
            sampling.min_p = c.eval_min_p.or(c.min_p).unwrap_or(0.0) as f32;
        }
        sampling
    }

    /// Prepares a generation with the policy's current weights: in training as `rollout_dtype` has them, in evaluations as they are.
    pub(super) fn decoding(&self, policy: &Policy, phase: Phase) -> Result<Decoding> {
        let weights = if phase == Phase::Eval { RolloutDtype::Auto } else { self.settings.rollout_dtype };
        Ok(policy.frozen().decoding_with(weights)?)
    }

    /// Generates completions of one turn. Returns the pass over the prompts too, if it is to be kept and the policy can continue it.
    pub(super) fn roll_out(
        &self,
        model: &Decoding,
        request: &RolloutRequest<'_>,
        continues_prompts: bool,
    ) -> Result<(Vec<Rollout>, Option<PromptPass>)> {
        let (samples, keep) = (request.samples, request.keeps_prompt_pass && continues_prompts);
        let of_prompt = |p: &Arc<Prompt>| Request { tokens: p.tokens.clone(), row: p.row as u64, first: 0, samples };
        let requests: Vec<Request> = request.prompts.iter().map(of_prompt).collect();
        Ok(self.generator(model, request, None, |generator| generator.run_keeping(&requests, keep))?)
    }

    /// Calls `run` with a generator of completions.
    pub(super) fn generator<T>(
        &self,
        model: &Decoding,
        request: &RolloutRequest<'_>,
        follow: Option<&dyn Follow>,
        run: impl FnOnce(Generator<'_>) -> T,
    ) -> T {
        let (c, RolloutRequest { sampling, logp_temperature, generation, .. }) = (&self.settings, *request);
        let (strings, tokenizer) = (&self.stops, &self.tokenizer);
        let stops = |tokens: &[u32]| strings.end(tokens, tokenizer);
        run(Generator {
            model,
            sampling,
            logp_temperature,
            keep_support: c.score_sampling_support == Some(true)
                && sampling == self.sampling(Phase::Train)
                && sampling.changes_support(),
            max_new_tokens: c.max_completion_length,
            max_num_seqs: c.max_num_seqs,
            seed: c.seed,
            generation,
            ends: &self.ends,
            stops: &stops,
            follow,
        })
    }

    /// Returns the rules of episodes, for a model with this context.
    pub(super) fn rules(&self, context: usize) -> Rules<'_> {
        let Config { seed, max_turns, max_episode_tokens, .. } = *self.settings;
        Rules { tokenizer: &self.tokenizer, seed, max_turns, most_tokens: max_episode_tokens.unwrap_or(usize::MAX), context }
    }

    /// Returns the same for other settings of generations.
    pub(super) fn with_settings(&self, settings: Rc<Config>) -> Self {
        let (tokenizer, ends, stops) = (self.tokenizer.clone(), self.ends.clone(), self.stops.clone());
        Self { settings, tokenizer, ends, stops }
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
