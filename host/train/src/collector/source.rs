//! The interface through which rollouts enter a run: requests with sampling parameters in; rollouts out, each with the policy version that
//! wrote it.

use super::episode_store::EpisodeStore;
use crate::dataset::Prompt;
use crate::episode::EpisodeOutcome;
use crate::model::{ModelFolder, PolicyModel, PromptPass};
use crate::phase::Phase;
use crate::plugin::{Metric, Reduction};
use crate::plugins::RunEnvironments;
use crate::rollout::{Rollout, Sampler};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A policy, with the number of updates that led to its weights.
#[derive(Clone, Copy)]
pub(crate) struct PolicyVersion<'a> {
    /// The policy.
    pub policy: &'a PolicyModel,
    /// Number of updates.
    pub version: u64,
}

/// The model and folder of a run, which some rollout sources need.
pub(crate) struct RunHome {
    /// The model that the run started with.
    pub model: ModelFolder,
    /// The folder of the run's outputs.
    pub folder: PathBuf,
    /// The step that the run resumes from, or 0.
    pub first_step: u64,
    /// Whether the run keeps a log of its rollouts, as training does.
    pub keeps_log: bool,
}

/// The position in a run at which a checkpoint was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedPlace {
    /// Number of updates.
    pub step: u64,
    /// Number of generations that training has started on.
    pub generation: u64,
}

/// A request for rollouts.
#[derive(Clone, Copy)]
pub(crate) struct RolloutRequest<'a> {
    /// Prompts of this process.
    pub prompts: &'a [Arc<Prompt>],
    /// Number of completions of each prompt.
    pub samples: usize,
    /// Parameters of sampling.
    pub sampling: Sampler,
    /// Divisor of the logits whose log-probabilities are recorded.
    pub logp_temperature: f32,
    /// Index of the generation. With the run's seed, the row and the sample, it determines the random numbers.
    pub generation: u64,
    /// Purpose of the completions.
    pub phase: Phase,
    /// The environments that reply.
    pub environments: RunEnvironments<'a>,
    /// Whether the next update trains on these completions directly, so that it can continue the pass over their prompts.
    pub keeps_prompt_pass: bool,
    /// Store for episodes that have ended before the rest of the generation; none if the run keeps nothing.
    pub ended: Option<&'a EpisodeStore>,
}

/// Rollouts of some prompts, in the order of the prompts.
#[derive(Default)]
pub(crate) struct RolloutBatch {
    /// The rollouts; `prompt` is an index among the request's prompts.
    pub rollouts: Vec<Rollout>,
    /// The outcome of each rollout's episode; empty without an environment.
    pub episodes: Vec<EpisodeOutcome>,
    /// Metrics of the environments or of the source.
    pub metrics: Vec<Metric>,
    /// Warnings about problems that were handled.
    pub warnings: Vec<String>,
    /// Whether another process, or an earlier run, computed the rollouts.
    pub elsewhere: bool,
}

/// Returns the metrics of completions that were begun before training on them: the updates by which the policy is ahead of each request's
/// (none if there are no requests), and the seconds for which training waited for them.
pub(super) fn metrics_of_staleness(staleness: &[f64], waited: f64) -> [Metric; 3] {
    let metric = |name: &str, value: f64, reduction| Metric { name: name.to_owned(), value, weight: 1.0, reduction };
    let mean = staleness.iter().sum::<f64>() / staleness.len().max(1) as f64;
    [
        metric("rollout/staleness/mean", mean, Reduction::Mean),
        metric("rollout/staleness/max", staleness.iter().copied().fold(0.0, f64::max), Reduction::Max),
        metric("rollout/wait_s", waited, Reduction::Mean),
    ]
}

/// A source of completions: this process, or anything else that generates with the policy.
pub(crate) trait RolloutSource {
    /// Rolls out a request with this policy. Each rollout carries the version that wrote it.
    ///
    /// # Errors
    /// If generation fails. A failed episode carries its own error.
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch>;

    /// Begins to roll out a request; [`RolloutSource::roll_out`] then returns its rollouts for the same generation.
    ///
    /// # Errors
    /// If the source can't generate while training continues, or the policy can't be sent to it.
    fn begin(&mut self, _: &RolloutRequest<'_>, _: PolicyVersion<'_>) -> Result<()> {
        Err(Error::Bug("rollouts are begun with a source that can't"))
    }

    /// Discards the rollouts that were begun.
    fn discard_begun(&mut self) {}

    /// Takes the pass over these prompts, if the source has kept it and it was made with this version of the policy.
    fn take_prompt_pass(&mut self, prompts: &[Arc<Prompt>], version: u64) -> Option<PromptPass>;

    /// Deletes data that was kept for resuming and that an earlier checkpoint holds, before another checkpoint is written. `is_saved` says
    /// whether a step's checkpoint is on disk.
    ///
    /// # Errors
    /// If it can't be deleted.
    fn before_save(&mut self, _: SavedPlace, _: &dyn Fn(u64) -> bool) -> Result<()> {
        Ok(())
    }

    /// Follows the run's folder to a new path.
    fn relocate(&mut self, _: &Path) {}
}
