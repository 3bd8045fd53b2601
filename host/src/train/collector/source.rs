//! The seam at which rollouts enter a run: requests and sampling parameters in, rollouts out, each with the version of the policy
//! that wrote it.

use super::turns::Turns;
use crate::model::{Policy, PromptPass};
use crate::plugin::Metric;
use crate::rollout::{Rollout, Sampling};
use crate::train::dataset::Prompt;
use crate::train::episode::Episode;
use crate::train::phase::Phase;
use crate::train::plugins::Environments;
use crate::train::{Error, Result};
use std::rc::Rc;
use std::sync::Arc;

/// A policy, and the number of updates that made its weights.
#[derive(Clone, Copy)]
pub(in crate::train) struct PolicyVersion<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The number of updates.
    pub version: u64,
}

/// What is to be rolled out, and how.
#[derive(Clone, Copy)]
pub(in crate::train) struct RolloutRequest<'a> {
    /// This process's prompts.
    pub prompts: &'a [Arc<Prompt>],
    /// Number of completions of each prompt.
    pub samples: usize,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// Divisor of the logits whose log-probabilities are recorded.
    pub logp_temperature: f32,
    /// Index of the generation. With the run's seed, the row and the sample, it determines the random numbers.
    pub generation: u64,
    /// What the completions are for.
    pub phase: Phase,
    /// The environments that reply.
    pub environments: Environments<'a>,
    /// Whether the next update trains on these completions at once, so that it can continue the pass over their prompts.
    pub keeps_prompt_pass: bool,
}

/// Rollouts of some prompts, in the order of the prompts.
#[derive(Default)]
pub(in crate::train) struct RolloutBatch {
    /// The rollouts; `prompt` is an index among the request's prompts.
    pub rollouts: Vec<Rollout>,
    /// The outcome of each rollout's episode; empty without an environment.
    pub episodes: Vec<Episode>,
    /// The environments' own metrics.
    pub metrics: Vec<Metric>,
}

/// Writes completions with a policy: in this process, or wherever else they come from.
pub(in crate::train) trait RolloutSource {
    /// Rolls out a request with this policy. Each rollout states the version that wrote it.
    ///
    /// # Errors
    /// If generation fails. A failed episode carries its own error.
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch>;

    /// Gives away the pass over these prompts, if the source has kept it and the policy is still of the version that it was made with.
    fn take_prompt_pass(&mut self, prompts: &[Arc<Prompt>], version: u64) -> Option<PromptPass>;
}

/// Decodes completions of one turn in this process, on the CPU or a device.
pub(super) struct Decoder {
    turns: Rc<Turns>,
    kept: Option<KeptPass>,
}

/// The pass over the prompts of the newest generation.
struct KeptPass {
    /// The version of the policy that made it.
    version: u64,
    prompts: Vec<Arc<Prompt>>,
    pass: PromptPass,
}

impl Decoder {
    /// Creates a source that decodes with these settings.
    pub(super) fn new(turns: Rc<Turns>) -> Self {
        Self { turns, kept: None }
    }
}

impl RolloutSource for Decoder {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        self.kept = None;
        let model = self.turns.decoding(policy.policy, request.phase)?;
        let (mut rollouts, pass) = self.turns.roll_out(&model, request, policy.policy.continues_prompts())?;
        stamp(&mut rollouts, policy.version);
        self.kept = pass.map(|pass| KeptPass { version: policy.version, prompts: request.prompts.to_vec(), pass });
        Ok(RolloutBatch { rollouts, ..RolloutBatch::default() })
    }

    fn take_prompt_pass(&mut self, prompts: &[Arc<Prompt>], version: u64) -> Option<PromptPass> {
        let is_of = |kept: &KeptPass| {
            let same = |(a, b): (&Arc<Prompt>, &Arc<Prompt>)| Arc::ptr_eq(a, b);
            kept.version == version && kept.prompts.len() == prompts.len() && kept.prompts.iter().zip(prompts).all(same)
        };
        self.kept.take().filter(is_of).map(|kept| kept.pass)
    }
}

/// Plays episodes with environments in this process: the policy writes a turn, the environment replies.
pub(super) struct Episodes {
    turns: Rc<Turns>,
}

impl Episodes {
    /// Creates a source that plays with these settings.
    pub(super) fn new(turns: Rc<Turns>) -> Self {
        Self { turns }
    }
}

impl RolloutSource for Episodes {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        if request.environments.plugins.is_empty() {
            return Err(Error::Bug("episodes without an environment"));
        }
        let model = self.turns.decoding(policy.policy, request.phase)?;
        // Evaluations play the same episodes again and again, which a server has to be asked for again.
        let scope = if request.phase == Phase::Eval { 1 + policy.version } else { 0 };
        let mut played = self.turns.play(&model, request, scope)?;
        stamp(&mut played.rollouts, policy.version);
        Ok(played)
    }

    fn take_prompt_pass(&mut self, _: &[Arc<Prompt>], _: u64) -> Option<PromptPass> {
        None
    }
}

/// Records which version of the policy wrote these rollouts.
fn stamp(rollouts: &mut [Rollout], version: u64) {
    rollouts.iter_mut().for_each(|rollout| rollout.policy_version = version);
}
