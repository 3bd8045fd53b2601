//! Rollouts of agents: programs that call the policy over HTTP, each in a session that records what was sampled.
//!
//! During a generation, a server on this machine answers with the policy's current weights. Each completion is an episode: a program that
//! the run starts ([`AgentContext::play_all`]) or an external driver ([`offered_episodes`]) receives its row and a session key, makes any
//! number of calls, and ends. Its calls become the tree of a rollout ([`Trajectory`](crate::rollout::Trajectory)).

mod offered_episodes;
mod persistent_program;
mod played_episode;
mod program;
mod report;
mod server;
mod tail;

use super::episode_store::FinishedEpisode;
use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource};
use super::turns::TurnGenerator;
use crate::Result;
use crate::config::AgentEntry;
use crate::data::Tokenizer;
use crate::dataset::Prompt;
use crate::model::PromptPass;
use crate::ops::sampler::stream;
use crate::phase::Phase;
use crate::plan::RolloutPlan;
use persistent_program::PersistentProgram;
use played_episode::{AgentWarnings, PlayedEpisode};
use program::ProgramOutcome;
use rand::RngExt;
use rlhost_serve::session::SessionRules;
use rlhost_serve::sessions::Sessions;
use serde_json::{Value, json};
use server::{AgentServer, new_key};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Distinguishes the seeds of agents, and of their calls, from those of sampling.
const SEEDS: [u64; 2] = [0x0061_6765_6e74, 0x6361_6c6c_7300];

/// Number of bits of an agent's seed: JavaScript represents integers exactly up to this size.
const SEED_BITS: u32 = 53;

/// Rollout source whose episodes agents play.
pub(super) struct AgentSource {
    turns: Rc<TurnGenerator>,
    plan: Rc<RolloutPlan>,
    entry: AgentEntry,
    /// The run's folder.
    folder: PathBuf,
    warned: Mutex<AgentWarnings>,
    /// Server that agents call; none before the first generation.
    server: Option<AgentServer>,
    /// Persistent programs that wait for an episode.
    idle: Mutex<Vec<PersistentProgram>>,
}

/// Context shared by all episodes of a generation.
struct AgentContext<'a> {
    entry: &'a AgentEntry,
    address: SocketAddr,
    sessions: &'a Sessions,
    rules: SessionRules,
    request: &'a RolloutRequest<'a>,
    /// Version of the policy.
    version: u64,
    seed: u64,
    idle: &'a Mutex<Vec<PersistentProgram>>,
    tokenizer: &'a Tokenizer,
    /// Token that stands for an episode without calls.
    filler: u32,
    warned: &'a Mutex<AgentWarnings>,
}

impl AgentSource {
    /// Creates a source with these settings, for a run in this folder.
    pub(super) fn new(turns: Rc<TurnGenerator>, plan: Rc<RolloutPlan>, entry: AgentEntry, folder: PathBuf) -> Self {
        Self { turns, plan, entry, folder, warned: Mutex::default(), server: None, idle: Mutex::default() }
    }

    /// Returns the rules of a request's sessions.
    fn rules(&self, request: &RolloutRequest<'_>) -> SessionRules {
        SessionRules {
            sampling: request.sampling,
            logp_temperature: request.logp_temperature,
            max_tokens: self.plan.max_completion_length,
            max_calls: self.plan.episode_limits.turns,
            max_text: self.plan.episode_limits.tokens,
        }
    }
}

impl RolloutSource for AgentSource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        if self.server.is_none() {
            let words = (self.turns.tokenizer(), self.turns.ends());
            self.server = Some(AgentServer::start(&self.entry, words, &self.folder)?);
        }
        let Some(server) = &self.server else { return Ok(RolloutBatch::default()) };
        let model = self.turns.decoding(policy.policy, request.phase)?;
        server.answer_with(model, policy.version, &self.entry, &self.plan)?;
        let table = AgentContext {
            entry: &self.entry,
            address: server.address(),
            sessions: &server.sessions,
            rules: self.rules(request),
            request,
            version: policy.version,
            seed: self.plan.seed,
            idle: &self.idle,
            tokenizer: self.turns.tokenizer(),
            filler: self.turns.ends().first().copied().unwrap_or(0),
            warned: &self.warned,
        };
        let ended = match &server.tasks {
            Some(tasks) => table.offer_all(tasks),
            None => table.play_all(),
        };
        // The remaining calls belong to episodes that have ended, and the weights are about to change.
        server.sessions.stop();
        let mut batch = RolloutBatch::default();
        for FinishedEpisode { rollout, episode, metrics } in ended {
            batch.rollouts.push(rollout);
            batch.episodes.push(episode);
            batch.metrics.extend(metrics);
        }
        Ok(batch)
    }

    fn take_prompt_pass(&mut self, _: &[Arc<Prompt>], _: u64) -> Option<PromptPass> {
        None
    }
}

impl AgentContext<'_> {
    /// Plays all episodes, several at a time, and returns them in the order of prompts and samples.
    fn play_all(&self) -> Vec<FinishedEpisode> {
        let all = self.episodes();
        let (next, ended) = (AtomicUsize::new(0), Mutex::new((0..all).map(|_| None).collect::<Vec<Option<FinishedEpisode>>>()));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= all {
                    return;
                }
                let one = self.ended_before(number).unwrap_or_else(|| self.end(number, self.play(number)));
                ended.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(one);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.entry.max_concurrent.min(all) {
                // If no more threads can be started, the running ones play the rest.
                let _ = thread::Builder::new().name("agent".into()).spawn_scoped(scope, work);
            }
            work();
        });
        self.in_order(ended.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of episodes of the generation.
    fn episodes(&self) -> usize {
        self.request.prompts.len() * self.request.samples
    }

    /// Returns the prompt of an episode, and its index among the prompt's completions.
    fn place_of(&self, number: usize) -> (usize, usize) {
        (number / self.request.samples, number % self.request.samples)
    }

    /// Returns the episode if it had already ended before the run was interrupted.
    fn ended_before(&self, number: usize) -> Option<FinishedEpisode> {
        let (prompt, sample) = self.place_of(number);
        let mut ended = self.request.ended?.find(&self.request.prompts[prompt], sample)?;
        (ended.rollout.prompt, ended.rollout.sample) = (prompt, sample);
        Some(ended)
    }

    /// Converts a played episode and stores it. A failed one is not stored, so that a resumed run plays it again.
    fn end(&self, number: usize, mut played: PlayedEpisode) -> FinishedEpisode {
        self.warned.lock().unwrap_or_else(PoisonError::into_inner).warn_of(&mut played);
        let (place, sample) = self.place_of(number);
        let prompt = &self.request.prompts[place];
        let mut ended = played.into_finished(&self.entry.name, self.tokenizer, prompt, self.filler);
        (ended.rollout.prompt, ended.rollout.sample, ended.rollout.policy_version) = (place, sample, self.version);
        if let Some(kept) = self.request.ended.filter(|_| ended.episode.failed.is_none()) {
            kept.keep(prompt, sample, &ended);
        }
        ended
    }

    /// Returns all episodes in order; one that nobody played counts as failed.
    fn in_order(&self, ended: Vec<Option<FinishedEpisode>>) -> Vec<FinishedEpisode> {
        let all = ended.into_iter().enumerate();
        all.map(|(number, one)| one.unwrap_or_else(|| self.end(number, PlayedEpisode::unstarted()))).collect()
    }

    /// Plays an episode with a program.
    fn play(&self, number: usize) -> PlayedEpisode {
        let Some(episode) = self.episode(number) else { return PlayedEpisode::unstarted() };
        let (key, seed) = (episode.key.clone(), episode.seed);
        self.sessions.open(key.clone(), episode.seed_of_calls, self.rules);
        let outcome = if self.entry.persistent { self.play_persistent(&episode) } else { self.play_once(episode) };
        PlayedEpisode::new(self.sessions.close(&key), outcome, seed)
    }

    /// Returns an episode with a new key; none if the system has no random numbers for it.
    fn episode(&self, number: usize) -> Option<AgentEpisode> {
        let (request, sample) = (self.request, number % self.request.samples);
        let prompt = &request.prompts[number / request.samples];
        let (generation, row) = (request.generation, prompt.row as u64);
        let seed = stream(self.seed ^ SEEDS[0], generation, row, 0).random::<u64>() >> (u64::BITS - SEED_BITS);
        let seed_of_calls = stream(self.seed ^ SEEDS[1], generation, row, sample as u64).random();
        // Evaluations and printed samples are numbered downward from `u64::MAX`.
        let name = match request.phase {
            Phase::Eval => format!("eval-{}-{}-{row}-{sample}", self.version, u64::MAX - generation),
            _ => format!("train-{generation}-{row}-{sample}"),
        };
        Some(AgentEpisode { key: new_key().ok()?, name, seed, seed_of_calls, row: row_of(prompt) })
    }
}

/// An episode as its program or driver knows it.
struct AgentEpisode {
    key: String,
    name: String,
    seed: u64,
    /// Seed of the calls' random numbers; never disclosed.
    seed_of_calls: u64,
    row: Value,
}

impl AgentContext<'_> {
    fn play_once(&self, episode: AgentEpisode) -> ProgramOutcome {
        let AgentEpisode { key, name, seed, row, .. } = episode;
        let own = [
            ("OPENAI_API_KEY", key.clone()),
            ("ANTHROPIC_API_KEY", key),
            ("RLHOST_EPISODE", name),
            ("RLHOST_SEED", seed.to_string()),
        ];
        let variables: Vec<(&str, String)> = self.addresses().into_iter().chain(own).collect();
        program::run(self.entry, &variables, format!("{row}\n"))
    }

    /// Plays an episode with an idle program, or starts a new one.
    fn play_persistent(&self, episode: &AgentEpisode) -> ProgramOutcome {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = idle().pop();
        let started = waiting.map_or_else(|| PersistentProgram::start(self.entry, &self.addresses()), Ok);
        let program = match started {
            Ok(program) => program,
            Err(reason) => return ProgramOutcome::from_failure(reason),
        };
        let AgentEpisode { key, name, seed, row, .. } = episode;
        let line = json!({"row": row, "base_url": self.base_url(), "api_key": key, "episode": name, "seed": seed});
        let (outcome, left) = program.play(&format!("{line}\n"), self.entry.timeout());
        idle().extend(left);
        outcome
    }

    fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    fn addresses(&self) -> [(&'static str, String); 2] {
        [("OPENAI_BASE_URL", self.base_url()), ("ANTHROPIC_BASE_URL", format!("http://{}", self.address))]
    }
}

/// Returns a row as an agent gets it: its columns, and the prompt, a text or a list of messages.
fn row_of(prompt: &Prompt) -> Value {
    let mut row = prompt.columns.clone();
    let asked = if prompt.chat { json!(prompt.conversation()) } else { json!(prompt.text) };
    row.insert("prompt".to_owned(), asked);
    Value::Object(row)
}
