//! Rollouts of one turn: a prompt, and what the policy writes to it until it ends.

use crate::config::Config;
use crate::data::{StopStrings, Tokenizer};
use crate::model::Policy;
use crate::rollout::{Generator, Request, Rollout, Sampling};
use crate::train::Result;
use crate::train::dataset::Prompt;
use std::rc::Rc;
use std::sync::Arc;

/// How completions are written.
pub(in crate::train) struct Turns {
    settings: Rc<Config>,
    tokenizer: Tokenizer,
    /// Ids that end a completion.
    ends: Vec<u32>,
    stops: StopStrings,
}

impl Turns {
    /// By a model whose configuration says that these tokens end a text.
    pub(in crate::train) fn new(settings: Rc<Config>, tokenizer: Tokenizer, eos_token_ids: &[u32]) -> Self {
        let (ends, stops) = (tokenizer.eos_ids(eos_token_ids), StopStrings::new(settings.stop.clone()));
        Self { settings, tokenizer, ends, stops }
    }

    /// So many `samples` of each prompt, whose random numbers follow from seed, `generation`, row and sample. Their
    /// log-probabilities are of logits divided by `logp_temperature`.
    pub(super) fn roll_out(
        &self,
        policy: &Policy,
        prompts: &[Arc<Prompt>],
        samples: usize,
        generation: u64,
        logp_temperature: f32,
    ) -> Result<Vec<Rollout>> {
        let c = &self.settings;
        let model = policy.frozen().decoding()?;
        let (strings, tokenizer) = (&self.stops, &self.tokenizer);
        let stops = |tokens: &[u32]| strings.end(tokens, tokenizer);
        let generator = Generator {
            model: &model,
            sampling: Sampling {
                temperature: c.temperature as f32,
                top_p: c.top_p as f32,
                top_k: c.top_k,
                min_p: c.min_p.unwrap_or(0.0) as f32,
                repetition_penalty: c.repetition_penalty as f32,
            },
            logp_temperature,
            max_new_tokens: c.max_completion_length,
            max_num_seqs: c.max_num_seqs,
            seed: c.seed,
            generation,
            ends: &self.ends,
            stops: &stops,
        };
        let requests: Vec<Request> =
            prompts.iter().map(|p| Request { tokens: p.tokens.clone(), row: p.row as u64, samples }).collect();
        Ok(generator.run(&requests)?)
    }

    /// The text of a completion.
    pub(super) fn text(&self, rollout: &Rollout) -> Result<String> {
        Ok(self.tokenizer.decode(&rollout.tokens)?)
    }
}
