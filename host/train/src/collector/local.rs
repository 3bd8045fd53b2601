//! Rollouts that this process generates: with its decoder, or in episodes.

use super::super::dataset::Prompt;
use super::super::phase::Phase;
use super::super::{Error, Result};
use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource};
use super::turns::TurnGenerator;
use crate::model::PromptPass;
use crate::rollout::Rollout;
use std::rc::Rc;
use std::sync::Arc;

/// Decodes single-turn completions in this process, on the CPU or a device.
pub(super) struct DecoderSource {
    turns: Rc<TurnGenerator>,
    kept: Option<CachedPromptPass>,
}

/// The pass over the prompts of the latest generation.
struct CachedPromptPass {
    /// Policy version of the pass.
    version: u64,
    prompts: Vec<Arc<Prompt>>,
    pass: PromptPass,
}

impl DecoderSource {
    /// Creates a source with these settings.
    pub(super) fn new(turns: Rc<TurnGenerator>) -> Self {
        Self { turns, kept: None }
    }
}

impl RolloutSource for DecoderSource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        self.kept = None;
        let model = self.turns.decoding(policy.policy, request.phase)?;
        let (mut rollouts, pass) = self.turns.roll_out(&model, request, policy.policy.continues_prompts())?;
        stamp(&mut rollouts, policy.version);
        self.kept = pass.map(|pass| CachedPromptPass { version: policy.version, prompts: request.prompts.to_vec(), pass });
        Ok(RolloutBatch { rollouts, ..RolloutBatch::default() })
    }

    fn take_prompt_pass(&mut self, prompts: &[Arc<Prompt>], version: u64) -> Option<PromptPass> {
        let is_of = |kept: &CachedPromptPass| {
            let same = |(a, b): (&Arc<Prompt>, &Arc<Prompt>)| Arc::ptr_eq(a, b);
            kept.version == version && kept.prompts.len() == prompts.len() && kept.prompts.iter().zip(prompts).all(same)
        };
        self.kept.take().filter(is_of).map(|kept| kept.pass)
    }
}

/// Plays episodes with environments in this process: the policy writes a turn, the environment replies.
pub(super) struct EpisodeSource {
    turns: Rc<TurnGenerator>,
}

impl EpisodeSource {
    /// Creates a source with these settings.
    pub(super) fn new(turns: Rc<TurnGenerator>) -> Self {
        Self { turns }
    }
}

impl RolloutSource for EpisodeSource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        if request.environments.plugins.is_empty() {
            return Err(Error::Bug("episodes without an environment"));
        }
        let model = self.turns.decoding(policy.policy, request.phase)?;
        // Evaluations repeat the same episodes, but must contact servers again for each version.
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
pub(super) fn stamp(rollouts: &mut [Rollout], version: u64) {
    rollouts.iter_mut().for_each(|rollout| rollout.policy_version = version);
}
