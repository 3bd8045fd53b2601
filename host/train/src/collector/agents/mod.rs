//! Rollouts of agents: programs that ask the policy over HTTP, each in a session that records what was sampled.
//!
//! For a generation, the policy's current weights answer at an address of this machine. Each completion is an episode: the program is
//! started with its row and the key of a session, makes as many calls as it likes, and ends. Its calls become the tree of a rollout
//! ([`Trajectory`]).

mod persistent;
mod played;
mod program;
mod report;
mod tail;

use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource};
use super::turns::Turns;
use crate::config::AgentEntry;
use crate::dataset::Prompt;
use crate::model::PromptPass;
use crate::ops::sampler::stream;
use crate::phase::Phase;
use crate::plan::RolloutPlan;
use crate::{Error, Result};
use persistent::Persistent;
use played::{Played, Warned, figures};
use program::Outcome;
use rand::rngs::SysRng;
use rand::{RngExt, TryRng};
use rlhost_serve::engine::{Engine, Options};
use rlhost_serve::session::{SessionRules, Sessions};
use rlhost_serve::{App, Limits, ModelCard, Server, Settings};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Distinguishes the seeds of agents, and of their calls, from those of sampling.
const SEEDS: [u64; 2] = [0x0061_6765_6e74, 0x6361_6c6c_7300];

/// Bits of the seed of an agent: JSON's numbers are exact up to there, in JavaScript as well.
const SEED_BITS: u32 = 53;

/// Where agents listen for nobody but this machine.
const HOST: &str = "127.0.0.1";

/// Lets agents play episodes.
pub(super) struct Agents {
    turns: Rc<Turns>,
    plan: Rc<RolloutPlan>,
    entry: AgentEntry,
    warned: Warned,
    /// The port that agents were given; 0 before the first generation.
    port: u16,
    /// Programs that wait for an episode.
    idle: Mutex<Vec<Persistent>>,
}

/// What all episodes of a generation need.
struct Table<'a> {
    entry: &'a AgentEntry,
    address: SocketAddr,
    sessions: &'a Sessions,
    rules: SessionRules,
    request: &'a RolloutRequest<'a>,
    /// Version of the policy.
    version: u64,
    seed: u64,
    idle: &'a Mutex<Vec<Persistent>>,
}

impl Agents {
    /// Creates a source that plays with these settings.
    pub(super) fn new(turns: Rc<Turns>, plan: Rc<RolloutPlan>, entry: AgentEntry) -> Self {
        Self { turns, plan, entry, warned: Warned::default(), port: 0, idle: Mutex::default() }
    }

    /// Starts to answer with the policy's weights.
    fn serve(&self, policy: PolicyVersion<'_>, phase: Phase, sessions: &Arc<Sessions>) -> Result<Server> {
        let failed = |error: std::io::Error| Error::setting("agent", format!("can't be answered: {error}"));
        let model = self.turns.decoding(policy.policy, phase)?;
        let context = model.architecture().max_positions;
        let options = Options {
            max_model_len: context,
            max_num_seqs: self.plan.max_num_seqs,
            // Each episode may have as many requests under way as it has calls.
            max_waiting: self.entry.max_concurrent.saturating_mul(self.plan.max_turns).saturating_mul(2),
            cache_bytes: usize::try_from(Options::default_cache_bytes()).unwrap_or(usize::MAX),
        };
        let engine = Engine::start(model, policy.version, options).map_err(failed)?;
        let (names, version) = (vec!["policy".to_owned()], env!("CARGO_PKG_VERSION").to_owned());
        let card = ModelCard { names, ends: self.turns.ends().to_vec(), version };
        let app = App::new(engine, self.turns.tokenizer().clone(), card).with_sessions(Arc::clone(sessions));
        let limits = Limits { answer_time: self.entry.timeout(), ..Limits::default() };
        Server::start(app, Settings { host: HOST.to_owned(), port: self.port, keys: Vec::new(), limits }).map_err(failed)
    }
}

impl RolloutSource for Agents {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        let sessions = Arc::<Sessions>::default();
        let server = self.serve(policy, request.phase, &sessions)?;
        self.port = server.address().port();
        let plan = &self.plan;
        let rules = SessionRules {
            sampling: request.sampling,
            logp_temperature: request.logp_temperature,
            max_tokens: plan.max_completion_length,
            max_calls: plan.max_turns,
            max_text: plan.max_episode_tokens,
        };
        let (entry, address) = (&self.entry, server.address());
        let table = Table {
            entry,
            address,
            sessions: &sessions,
            rules,
            request,
            version: policy.version,
            seed: plan.seed,
            idle: &self.idle,
        };
        let played = table.play_all();
        // What is under way belongs to episodes that have ended.
        drop(server);
        let mut batch = RolloutBatch { metrics: figures(&self.entry.name, &played), ..RolloutBatch::default() };
        let filler = self.turns.ends().first().copied().unwrap_or(0);
        for (number, mut played) in played.into_iter().enumerate() {
            let (prompt, sample) = (number / request.samples, number % request.samples);
            self.warned.warn_of(&mut played);
            let (mut rollout, episode) = played.into_parts(self.turns.tokenizer(), &request.prompts[prompt], filler);
            (rollout.prompt, rollout.sample, rollout.policy_version) = (prompt, sample, policy.version);
            batch.rollouts.push(rollout);
            batch.episodes.push(episode);
        }
        Ok(batch)
    }

    fn take_prompt_pass(&mut self, _: &[Arc<Prompt>], _: u64) -> Option<PromptPass> {
        None
    }
}

impl Table<'_> {
    /// Plays all episodes, several at a time, and returns them in the order of prompts and samples.
    fn play_all(&self) -> Vec<Played> {
        let all = self.request.prompts.len() * self.request.samples;
        let (next, played) = (AtomicUsize::new(0), Mutex::new((0..all).map(|_| None).collect::<Vec<Option<Played>>>()));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= all {
                    return;
                }
                let one = self.play(number);
                played.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(one);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.entry.max_concurrent.min(all) {
                // Where no more threads are to be had, the others play what is left.
                let _ = thread::Builder::new().name("agent".into()).spawn_scoped(scope, work);
            }
            work();
        });
        let played = played.into_inner().unwrap_or_else(PoisonError::into_inner);
        played.into_iter().map(|one| one.unwrap_or_default()).collect()
    }

    /// Plays an episode.
    fn play(&self, number: usize) -> Played {
        let (request, sample) = (self.request, number % self.request.samples);
        let prompt = &request.prompts[number / request.samples];
        let (generation, row) = (request.generation, prompt.row as u64);
        let seed = stream(self.seed ^ SEEDS[0], generation, row, 0).random::<u64>() >> (u64::BITS - SEED_BITS);
        let of_calls = stream(self.seed ^ SEEDS[1], generation, row, sample as u64).random();
        let Ok(key) = new_key() else {
            return Played { seed, failed: Some("the system has no random numbers for a key".into()), ..Played::default() };
        };
        self.sessions.open(key.clone(), of_calls, self.rules);
        // Evaluations, and samples that are printed, have numbers from the last one down.
        let name = match request.phase {
            Phase::Eval => format!("eval-{}-{}-{row}-{sample}", self.version, u64::MAX - generation),
            _ => format!("train-{generation}-{row}-{sample}"),
        };
        let episode = Episode { key: &key, name, seed, row: row_of(prompt) };
        let outcome = if self.entry.persistent { self.play_persistent(&episode) } else { self.play_once(episode) };
        Played::new(self.sessions.close(&key), outcome, seed)
    }
}

/// An episode as its program knows it.
struct Episode<'a> {
    key: &'a str,
    name: String,
    seed: u64,
    row: Value,
}

impl Table<'_> {
    fn play_once(&self, episode: Episode<'_>) -> Outcome {
        let Episode { key, name, seed, row } = episode;
        let own = [
            ("OPENAI_API_KEY", key.to_owned()),
            ("ANTHROPIC_API_KEY", key.to_owned()),
            ("RLHOST_EPISODE", name),
            ("RLHOST_SEED", seed.to_string()),
        ];
        let variables: Vec<(&str, String)> = self.addresses().into_iter().chain(own).collect();
        program::run(self.entry, &variables, format!("{row}\n"))
    }

    /// Has a program play that waits, or else a new one.
    fn play_persistent(&self, episode: &Episode<'_>) -> Outcome {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = idle().pop();
        let started = waiting.map_or_else(|| Persistent::start(self.entry, &self.addresses()), Ok);
        let program = match started {
            Ok(program) => program,
            Err(reason) => return Outcome::failed(reason),
        };
        let Episode { key, name, seed, row } = episode;
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

/// Returns a key that nobody can guess.
fn new_key() -> std::result::Result<String, rand::rngs::SysError> {
    let [a, b] = [SysRng.try_next_u64()?, SysRng.try_next_u64()?];
    Ok(format!("rlhost-{a:016x}{b:016x}"))
}
