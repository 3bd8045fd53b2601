//! The seam at which rollouts enter a run: requests and sampling parameters in, rollouts out, each with the version of the policy
//! that wrote it.

use super::episode_store::EpisodeStore;
use crate::dataset::Prompt;
use crate::episode::EpisodeOutcome;
use crate::model::{ModelFolder, PolicyModel, PromptPass};
use crate::phase::Phase;
use crate::plugin::Metric;
use crate::plugins::RunEnvironments;
use crate::rollout::{Rollout, Sampler};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A policy, and the number of updates that made its weights.
#[derive(Clone, Copy)]
pub(crate) struct PolicyVersion<'a> {
    /// The policy.
    pub policy: &'a PolicyModel,
    /// The number of updates.
    pub version: u64,
}

/// The model and the folder of a run, which some sources of rollouts need.
pub(crate) struct RunHome {
    /// The model that it started with.
    pub model: ModelFolder,
    /// The folder that it writes into.
    pub folder: PathBuf,
    /// The step that it resumes from, or 0.
    pub first_step: u64,
    /// Whether it keeps a log of its rollouts: it trains.
    pub keeps_log: bool,
}

/// A place in a run that a checkpoint continues from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedPlace {
    /// Number of updates.
    pub step: u64,
    /// Number of generations that training has begun to learn from.
    pub generation: u64,
}

/// What is to be rolled out, and how.
#[derive(Clone, Copy)]
pub(crate) struct RolloutRequest<'a> {
    /// This process's prompts.
    pub prompts: &'a [Arc<Prompt>],
    /// Number of completions of each prompt.
    pub samples: usize,
    /// How tokens are sampled.
    pub sampling: Sampler,
    /// Divisor of the logits whose log-probabilities are recorded.
    pub logp_temperature: f32,
    /// Index of the generation. With the run's seed, the row and the sample, it determines the random numbers.
    pub generation: u64,
    /// What the completions are for.
    pub phase: Phase,
    /// The environments that reply.
    pub environments: RunEnvironments<'a>,
    /// Whether the next update trains on these completions at once, so that it can continue the pass over their prompts.
    pub keeps_prompt_pass: bool,
    /// Where episodes are kept that have ended, until all of the generation have; none if nothing of a run is kept.
    pub ended: Option<&'a EpisodeStore>,
}

/// Rollouts of some prompts, in the order of the prompts.
#[derive(Default)]
pub(crate) struct RolloutBatch {
    /// The rollouts; `prompt` is an index among the request's prompts.
    pub rollouts: Vec<Rollout>,
    /// The outcome of each rollout's episode; empty without an environment.
    pub episodes: Vec<EpisodeOutcome>,
    /// The environments' own metrics, or those of the source.
    pub metrics: Vec<Metric>,
    /// What went wrong and was dealt with.
    pub warnings: Vec<String>,
    /// Whether they were computed elsewhere, or before.
    pub elsewhere: bool,
}

/// Writes completions with a policy: in this process, or wherever else they come from.
pub(crate) trait RolloutSource {
    /// Rolls out a request with this policy. Each rollout states the version that wrote it.
    ///
    /// # Errors
    /// If generation fails. A failed episode carries its own error.
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch>;

    /// Begins to roll out a request, whose rollouts [`RolloutSource::roll_out`] then returns for the same generation.
    ///
    /// # Errors
    /// If the source can't work while training goes on, or the policy can't be handed to it.
    fn begin(&mut self, _: &RolloutRequest<'_>, _: PolicyVersion<'_>) -> Result<()> {
        Err(Error::Bug("rollouts are begun with a source that can't"))
    }

    /// Forgets what was begun.
    fn discard_begun(&mut self) {}

    /// Gives away the pass over these prompts, if the source has kept it and the policy is still of the version that it was made with.
    fn take_prompt_pass(&mut self, prompts: &[Arc<Prompt>], version: u64) -> Option<PromptPass>;

    /// Forgets what is kept for a resumed run and was in a checkpoint before, since another one is about to be written. `is_saved` says
    /// whether a step's checkpoint is on disk.
    ///
    /// # Errors
    /// If it can't be removed.
    fn before_save(&mut self, _: SavedPlace, _: &dyn Fn(u64) -> bool) -> Result<()> {
        Ok(())
    }

    /// Continues in another place, where the run's folder has gone.
    fn relocate(&mut self, _: &Path) {}
}
