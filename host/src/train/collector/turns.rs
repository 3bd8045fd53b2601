//! Generates rollouts: with one turn, a prompt and its completion, or with several, as [`episodes`](super::episodes) requests.

use super::episodes::Rules;
use crate::config::{Config, RolloutDtype};
use crate::data::{StopStrings, Tokenizer};
use crate::model::{Decoding, Policy, PromptPass};
use crate::rollout::{Follow, Generator, Request, Rollout, Sampling};
use crate::train::Result;
use crate::train::dataset::Prompt;
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
    pub(super) fn sampling(&self, evaluating: bool) -> Sampling {
        let c = &self.settings;
        let mut sampling = Sampling {
            temperature: c.temperature as f32,
            top_p: c.top_p as f32,
            top_k: c.top_k,
            min_p: c.min_p.unwrap_or(0.0) as f32,
            repetition_penalty: c.repetition_penalty as f32,
        };
        if evaluating {
            sampling.temperature = c.eval_temperature.unwrap_or(c.temperature) as f32;
            sampling.top_p = c.eval_top_p.unwrap_or(c.top_p) as f32;
            sampling.top_k = c.eval_top_k.unwrap_or(c.top_k);
            sampling.min_p = c.eval_min_p.or(c.min_p).unwrap_or(0.0) as f32;
        }
        sampling
    }

    /// Prepares a generation with the policy's current weights: in training as `rollout_dtype` has them, in evaluations as they are.
    pub(super) fn decoding(&self, policy: &Policy, evaluating: bool) -> Result<Decoding> {
        let weights = if evaluating { RolloutDtype::Auto } else { self.settings.rollout_dtype };
        Ok(policy.frozen().decoding_with(weights)?)
    }

    /// Generates this many samples per prompt. Random numbers depend on seed, `generation`, row and sample. Log-probabilities
    /// are of logits divided by `logp_temperature`. If the prompts' pass is to be kept, it may be returned.
    pub(super) fn roll_out(
        &self,
        model: &Decoding,
        (prompts, samples): (&[Arc<Prompt>], usize),
        sampling: Sampling,
        generation: u64,
        logp_temperature: f32,
        keep: bool,
    ) -> Result<(Vec<Rollout>, Option<PromptPass>)> {
        let requests: Vec<Request> =
            prompts.iter().map(|p| Request { tokens: p.tokens.clone(), row: p.row as u64, first: 0, samples }).collect();
        Ok(self.generator(model, (sampling, logp_temperature), generation, None, |g| g.run_keeping(&requests, keep))?)
    }

    /// Calls `run` with a generator of completions.
    pub(super) fn generator<T>(
        &self,
        model: &Decoding,
        (sampling, logp_temperature): (Sampling, f32),
        generation: u64,
        follow: Option<&dyn Follow>,
        run: impl FnOnce(Generator<'_>) -> T,
    ) -> T {
        let c = &self.settings;
        let (strings, tokenizer) = (&self.stops, &self.tokenizer);
        let stops = |tokens: &[u32]| strings.end(tokens, tokenizer);
        run(Generator {
            model,
            sampling,
            logp_temperature,
            keep_support: c.score_sampling_support == Some(true)
                && sampling == self.sampling(false)
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

    /// Returns the text of a completion.
    pub(super) fn text(&self, rollout: &Rollout) -> Result<String> {
        Ok(self.tokenizer.decode(&rollout.tokens)?)
    }
}
