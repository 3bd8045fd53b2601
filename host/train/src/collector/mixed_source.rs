//! Rollouts of which some are the dataset's completions: those of each prompt, by chance.

use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource, SavedPlace};
use crate::dataset::Prompt;
use crate::model::PromptPass;
use crate::ops::sampler::stream;
use crate::phase::Phase;
use crate::plugin::{Metric, Reduction};
use crate::rollout::Rollout;
use crate::{Error, Result};
use rand::RngExt;
use std::path::Path;
use std::sync::Arc;

/// Distinguishes the choice of prompts from other random numbers.
const SEEDS: u64 = 0x6d69_7865_6400;

/// Rollout source that takes completions of some prompts from the dataset, and the others from another source.
pub(super) struct MixedSource {
    source: Box<dyn RolloutSource>,
    /// Share of the prompts whose completions the other source writes.
    own_share: f64,
    seed: u64,
    /// Maximum number of tokens of a completion.
    longest: usize,
}

impl MixedSource {
    /// Creates a source that takes this share of training's completions from `source`.
    pub(super) fn new(source: Box<dyn RolloutSource>, own_share: f64, seed: u64, longest: usize) -> Self {
        Self { source, own_share, seed, longest }
    }

    /// Returns whether the other source writes the completions of a prompt in this generation.
    fn is_own(&self, prompt: &Prompt, request: &RolloutRequest<'_>) -> bool {
        let draw = || stream(self.seed ^ SEEDS, request.generation, prompt.row as u64, 0).random::<f64>();
        request.phase != Phase::Train || draw() < self.own_share
    }

    /// Returns the prompts whose completions the other source writes.
    fn own_prompts(&self, request: &RolloutRequest<'_>) -> Vec<Arc<Prompt>> {
        request.prompts.iter().filter(|prompt| self.is_own(prompt, request)).cloned().collect()
    }

    /// Returns the dataset's completion of a prompt. It was not sampled, so it has no log-probabilities.
    fn given(&self, prompt: &Prompt, policy_version: u64) -> Result<Rollout> {
        let answers = prompt.answers.as_ref().ok_or(Error::Bug("a prompt has no completion"))?;
        let (tokens, finished) = (answers.chosen.clone(), answers.chosen.len() < self.longest);
        Ok(Rollout { logp: vec![f32::NAN; tokens.len()], tokens, finished, policy_version, ..Rollout::default() })
    }
}

impl RolloutSource for MixedSource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        let (prompts, version) = (self.own_prompts(request), policy.version);
        // A pass over some of a step's prompts is of no use to training.
        let keeps_prompt_pass = request.keeps_prompt_pass && prompts.len() == request.prompts.len();
        let own = RolloutRequest { prompts: &prompts, keeps_prompt_pass, ..*request };
        let mut batch = self.source.roll_out(&own, policy)?;
        if request.phase != Phase::Train {
            return Ok(batch);
        }
        let mut own = std::mem::take(&mut batch.rollouts).into_iter();
        for (place, prompt) in request.prompts.iter().enumerate() {
            for sample in 0..request.samples {
                let rollout = match self.is_own(prompt, request) {
                    true => own.next().ok_or(Error::Bug("a rollout is missing"))?,
                    false => self.given(prompt, version)?,
                };
                batch.rollouts.push(Rollout { prompt: place, sample, ..rollout });
            }
        }
        let (count, all) = (prompts.len() as f64, request.prompts.len() as f64);
        let (name, reduction) = ("rollout/own_share".to_owned(), Reduction::Mean);
        batch.metrics.push(Metric { name, value: count / all.max(1.0), weight: all, reduction });
        Ok(batch)
    }

    fn begin(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<()> {
        let prompts = self.own_prompts(request);
        self.source.begin(&RolloutRequest { prompts: &prompts, ..*request }, policy)
    }

    fn discard_begun(&mut self) {
        self.source.discard_begun();
    }

    fn take_prompt_pass(&mut self, prompts: &[Arc<Prompt>], version: u64) -> Option<PromptPass> {
        self.source.take_prompt_pass(prompts, version)
    }

    fn before_save(&mut self, place: SavedPlace, is_saved: &dyn Fn(u64) -> bool) -> Result<()> {
        self.source.before_save(place, is_saved)
    }

    fn relocate(&mut self, run: &Path) {
        self.source.relocate(run);
    }
}
