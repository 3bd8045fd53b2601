//! Where a run's episodes are played: the server that agents call, and their programs.

use super::persistent_program::PersistentProgram;
use super::played_episode::AgentWarnings;
use super::server::AgentServer;
use crate::Result;
use crate::config::AgentEntry;
use crate::data::Tokenizer;
use crate::dataset::Prompt;
use crate::phase::Phase;
use crate::plan::RolloutPlan;
use rlhost_serve::session::SessionRules;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Server and agents of a run, which play one generation at a time.
pub(super) struct AgentStage {
    /// The agents, in the order of their indices in episodes.
    pub agents: Vec<StagedAgent>,
    pub seed: u64,
    pub tokenizer: Tokenizer,
    /// Token that stands for an episode without calls.
    pub filler: u32,
    pub server: AgentServer,
    pub plan: RolloutPlan,
    /// Locked while a generation is played.
    pub playing: Mutex<()>,
}

/// An agent of a run, with what it keeps between episodes.
pub(super) struct StagedAgent {
    pub entry: AgentEntry,
    /// Persistent programs that wait for an episode.
    pub idle: Mutex<Vec<PersistentProgram>>,
    pub warned: Mutex<AgentWarnings>,
}

/// The episodes of a generation.
pub(super) struct AgentGeneration {
    pub prompts: Vec<Arc<Prompt>>,
    /// Number of episodes of each prompt.
    pub samples: usize,
    /// Index of the generation.
    pub number: u64,
    pub phase: Phase,
    pub rules: SessionRules,
    /// Version of the policy.
    pub version: u64,
    /// Whether the generation is no longer needed, so that its episodes end at once.
    pub discarded: AtomicBool,
}

impl AgentGeneration {
    pub(super) fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::SeqCst)
    }
}

impl AgentStage {
    /// Starts the server for the plan's agents; `words` are the tokenizer and the tokens that end a turn.
    ///
    /// # Errors
    /// If it can't listen, or has no key for drivers.
    pub(super) fn start(plan: &RolloutPlan, words: (&Tokenizer, &[u32]), folder: &Path) -> Result<Self> {
        let staged = |entry: &AgentEntry| {
            let (idle, warned) = Default::default();
            StagedAgent { entry: entry.clone(), idle, warned }
        };
        Ok(Self {
            server: AgentServer::start(&plan.agents, words, folder)?,
            agents: plan.agents.iter().map(staged).collect(),
            seed: plan.seed,
            tokenizer: words.0.clone(),
            filler: words.1.first().copied().unwrap_or(0),
            plan: plan.clone(),
            playing: Mutex::default(),
        })
    }

    /// Ends the episodes of a discarded generation, if it is being played.
    pub(super) fn interrupt(&self) {
        if let Some(tasks) = &self.server.tasks {
            tasks.wake();
        }
    }
}
