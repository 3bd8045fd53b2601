//! Rollouts of agents: programs that call the policy over HTTP, each in a session that records what was sampled.
//!
//! During a generation, a server on this machine answers with the policy's current weights. Each completion is an episode: a program that
//! the run starts ([`context`]) or an external driver ([`offered_episodes`]) receives its row and a session key, makes any
//! number of calls, and ends. Its calls become the tree of a rollout ([`Trajectory`](crate::rollout::Trajectory)).
//!
//! With `max_staleness`, generations are played on another thread while training goes on ([`generations_ahead`]).

mod context;
mod generations_ahead;
mod offered_episodes;
mod persistent_program;
mod played_episode;
mod program;
mod report;
mod server;
mod stage;
mod tail;

use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource};
use super::turns::TurnGenerator;
use crate::Result;
use crate::dataset::Prompt;
use crate::model::{FrozenModel, PromptPass};
use crate::phase::Phase;
use crate::plan::RolloutPlan;
use generations_ahead::GenerationsAhead;
use rlhost_serve::session::SessionRules;
use stage::{AgentGeneration, AgentStage};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rollout source whose episodes agents play.
pub(super) struct AgentSource {
    turns: Rc<TurnGenerator>,
    plan: Rc<RolloutPlan>,
    /// The run's folder.
    folder: PathBuf,
    /// Where episodes are played; none before the first generation.
    stage: Option<Arc<AgentStage>>,
    /// Generations that are played while training goes on.
    ahead: GenerationsAhead,
    /// Copy of the newest weights that a generation was begun with, which all of the same version share.
    copied: Option<(u64, FrozenModel)>,
}

impl AgentSource {
    /// Creates a source with the plan's agents, for a run in this folder.
    pub(super) fn new(turns: Rc<TurnGenerator>, plan: Rc<RolloutPlan>, folder: PathBuf) -> Self {
        Self { turns, plan, folder, stage: None, ahead: GenerationsAhead::default(), copied: None }
    }

    /// Returns the stage, started if it was not.
    fn stage(&mut self) -> Result<Arc<AgentStage>> {
        if let Some(stage) = &self.stage {
            return Ok(Arc::clone(stage));
        }
        let words = (self.turns.tokenizer(), self.turns.ends());
        let stage = Arc::new(AgentStage::start(&self.plan, words, &self.folder)?);
        self.stage = Some(Arc::clone(&stage));
        Ok(stage)
    }

    /// Returns what agents need of a request.
    fn generation(&self, request: &RolloutRequest<'_>, version: u64) -> AgentGeneration {
        let rules = SessionRules {
            sampling: request.sampling,
            logp_temperature: request.logp_temperature,
            max_tokens: self.plan.max_completion_length,
            max_calls: self.plan.episode_limits.turns,
            max_text: self.plan.episode_limits.tokens,
        };
        let (prompts, discarded) = (request.prompts.to_vec(), AtomicBool::new(false));
        let RolloutRequest { samples, generation: number, phase, .. } = *request;
        AgentGeneration { prompts, samples, number, phase, rules, version, discarded }
    }
}

impl RolloutSource for AgentSource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        if request.phase == Phase::Train
            && let Some(batch) = self.ahead.take(request.generation, policy.version)
        {
            return batch;
        }
        let generation = self.generation(request, policy.version);
        let model = self.turns.decoding(policy.policy, request.phase)?;
        context::play(&*self.stage()?, &generation, model, request.ended)
    }

    fn begin(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<()> {
        let generation = self.generation(request, policy.version);
        // Training changes the policy's own weights meanwhile.
        let frozen = match self.copied.take().filter(|(version, _)| *version == policy.version) {
            Some((_, frozen)) => frozen,
            None => policy.policy.frozen_copy()?,
        };
        let model = frozen.decoding_with(self.plan.dtype)?;
        self.copied = Some((policy.version, frozen));
        let stage = self.stage()?;
        self.ahead.begin(stage, generation, model)
    }

    fn discard_begun(&mut self) {
        self.copied = None;
        if let Some(stage) = &self.stage {
            self.ahead.discard(stage);
        }
    }

    fn take_prompt_pass(&mut self, _: &[Arc<Prompt>], _: u64) -> Option<PromptPass> {
        None
    }
}

impl Drop for AgentSource {
    fn drop(&mut self) {
        self.discard_begun();
    }
}
