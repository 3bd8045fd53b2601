//! Plays the episodes of a generation: with programs that the run starts, or with drivers.

use super::super::episode_store::{EpisodeStore, FinishedEpisode};
use super::super::source::RolloutBatch;
use super::persistent_program::PersistentProgram;
use super::played_episode::PlayedEpisode;
use super::program::{self, ProgramOutcome};
use super::server::new_key;
use super::stage::{AgentGeneration, AgentStage, StagedAgent};
use crate::Result;
use crate::dataset::Prompt;
use crate::model::IncrementalDecoder;
use crate::ops::sampler::stream;
use crate::phase::Phase;
use rand::RngExt;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Distinguishes the seeds of agents, and of their calls, from those of sampling.
const SEEDS: [u64; 2] = [0x0061_6765_6e74, 0x6361_6c6c_7300];

/// Number of bits of an agent's seed: JavaScript represents integers exactly up to this size.
const SEED_BITS: u32 = 53;

/// Context shared by all episodes of a generation.
pub(super) struct AgentContext<'a> {
    pub stage: &'a AgentStage,
    pub generation: &'a AgentGeneration,
    /// Store for finished episodes, if there is one.
    store: Option<&'a EpisodeStore>,
}

/// Episodes of one agent, which its threads take one after another.
#[derive(Default)]
struct EpisodeQueue {
    /// Numbers of the episodes in the generation.
    numbers: Vec<usize>,
    taken: AtomicUsize,
}

impl EpisodeQueue {
    /// Takes the next episode.
    fn next(&self) -> Option<usize> {
        self.numbers.get(self.taken.fetch_add(1, Ordering::Relaxed)).copied()
    }
}

/// Plays a generation with this model, after one that is being played.
///
/// # Errors
/// If no engine can be started.
pub(super) fn play(
    stage: &AgentStage,
    generation: &AgentGeneration,
    model: IncrementalDecoder,
    store: Option<&EpisodeStore>,
) -> Result<RolloutBatch> {
    let _alone = stage.playing.lock().unwrap_or_else(PoisonError::into_inner);
    if generation.is_discarded() {
        return Ok(RolloutBatch::default());
    }
    stage.server.answer_with(model, generation.version, &stage.plan)?;
    let context = AgentContext { stage, generation, store };
    let ended = match &stage.server.tasks {
        Some(tasks) => context.offer_all(tasks),
        None => context.play_all(),
    };
    // The remaining calls belong to episodes that have ended, and the weights are about to change.
    stage.server.sessions.stop();
    let mut batch = RolloutBatch::default();
    for FinishedEpisode { rollout, episode, metrics } in ended {
        batch.rollouts.push(rollout);
        batch.episodes.push(episode);
        batch.metrics.extend(metrics);
    }
    Ok(batch)
}

impl AgentContext<'_> {
    /// Plays all episodes, several of each agent at a time, and returns them in the order of prompts and samples.
    fn play_all(&self) -> Vec<FinishedEpisode> {
        let mut queues: Vec<EpisodeQueue> = self.stage.agents.iter().map(|_| EpisodeQueue::default()).collect();
        (0..self.episodes()).for_each(|number| queues[self.agent_of(number).0].numbers.push(number));
        let ended = Mutex::new((0..self.episodes()).map(|_| None).collect::<Vec<Option<FinishedEpisode>>>());
        let work = |queue: &EpisodeQueue| {
            while let Some(number) = queue.next()
                && !self.generation.is_discarded()
            {
                let one = self.ended_before(number).unwrap_or_else(|| self.end(number, self.play(number)));
                ended.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(one);
            }
        };
        thread::scope(|scope| {
            for (agent, queue) in self.stage.agents.iter().zip(&queues) {
                for _ in 0..agent.entry.max_concurrent.min(queue.numbers.len()) {
                    // If no more threads can be started, the running ones play the rest.
                    let _ = thread::Builder::new().name("agent".into()).spawn_scoped(scope, || work(queue));
                }
            }
        });
        // For agents that no thread could be started for.
        queues.iter().for_each(work);
        self.in_order(ended.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of episodes of the generation.
    pub(super) fn episodes(&self) -> usize {
        self.generation.prompts.len() * self.generation.samples
    }

    /// Returns the prompt of an episode, and its index among the prompt's completions.
    pub(super) fn place_of(&self, number: usize) -> (usize, usize) {
        (number / self.generation.samples, number % self.generation.samples)
    }

    /// Returns the agent that plays an episode, and its index.
    fn agent_of(&self, number: usize) -> (usize, &StagedAgent) {
        let prompt = &self.generation.prompts[self.place_of(number).0];
        // Rows that name no agent are refused when the run starts.
        let at = prompt.played_by(&self.stage.plan.agents).unwrap_or(0);
        (at, &self.stage.agents[at])
    }

    /// Returns the episode if it had already ended before the run was interrupted.
    pub(super) fn ended_before(&self, number: usize) -> Option<FinishedEpisode> {
        let (prompt, sample) = self.place_of(number);
        let mut ended = self.store?.find(&self.generation.prompts[prompt], sample)?;
        (ended.rollout.prompt, ended.rollout.sample) = (prompt, sample);
        Some(ended)
    }

    /// Converts a played episode and stores it. A failed one is not stored, so that a resumed run plays it again.
    pub(super) fn end(&self, number: usize, mut played: PlayedEpisode) -> FinishedEpisode {
        let (at, agent) = self.agent_of(number);
        if let Some(failed) = played.failed.as_mut().filter(|_| self.stage.agents.len() > 1) {
            *failed = format!("{}: {failed}", agent.entry.name);
        }
        agent.warned.lock().unwrap_or_else(PoisonError::into_inner).warn_of(&mut played, &agent.entry.name);
        let (place, sample) = self.place_of(number);
        let prompt = &self.generation.prompts[place];
        let mut ended = played.into_finished(&agent.entry.name, &self.stage.tokenizer, prompt, self.stage.filler);
        ended.episode.environment = at;
        (ended.rollout.prompt, ended.rollout.sample, ended.rollout.policy_version) = (place, sample, self.generation.version);
        if let Some(kept) = self.store.filter(|_| ended.episode.failed.is_none()) {
            kept.keep(prompt, sample, &ended);
        }
        ended
    }

    /// Returns all episodes in order; one that nobody played counts as failed.
    pub(super) fn in_order(&self, ended: Vec<Option<FinishedEpisode>>) -> Vec<FinishedEpisode> {
        let all = ended.into_iter().enumerate();
        all.map(|(number, one)| one.unwrap_or_else(|| self.end(number, PlayedEpisode::unstarted()))).collect()
    }

    /// Plays an episode with a program.
    fn play(&self, number: usize) -> PlayedEpisode {
        let Some(episode) = self.episode(number) else { return PlayedEpisode::unstarted() };
        let (key, seed) = (episode.key.clone(), episode.seed);
        let sessions = &self.stage.server.sessions;
        let open = || sessions.open(key.clone(), episode.seed_of_calls, self.generation.rules);
        open();
        let agent = self.agent_of(number).1;
        if !agent.entry.persistent {
            let outcome = self.play_once(agent, episode);
            return PlayedEpisode::new(sessions.close(&key), outcome, seed);
        }
        let (mut outcome, is_used) = self.play_persistent(agent, &episode);
        let mut record = sessions.close(&key);
        // One that has played may have ended right after its last report, and never have seen this episode.
        if is_used && outcome.ended && record.calls.is_empty() {
            open();
            (outcome, _) = self.play_persistent(agent, &episode);
            record = sessions.close(&key);
        }
        PlayedEpisode::new(record, outcome, seed)
    }

    /// Returns an episode with a new key; none if the system has no random numbers for it.
    pub(super) fn episode(&self, number: usize) -> Option<AgentEpisode> {
        let (place, sample) = self.place_of(number);
        let prompt = &self.generation.prompts[place];
        let (generation, row, run_seed) = (self.generation.number, prompt.row as u64, self.stage.seed);
        let seed = stream(run_seed ^ SEEDS[0], generation, row, 0).random::<u64>() >> (u64::BITS - SEED_BITS);
        let seed_of_calls = stream(run_seed ^ SEEDS[1], generation, row, sample as u64).random();
        // Evaluations and printed samples are numbered downward from `u64::MAX`.
        let group = match self.generation.phase {
            Phase::Eval => format!("eval-{}-{}-{row}", self.generation.version, u64::MAX - generation),
            _ => format!("train-{generation}-{row}"),
        };
        let name = format!("{group}-{sample}");
        Some(AgentEpisode { key: new_key().ok()?, name, group, seed, seed_of_calls, row: row_of(prompt) })
    }
}

/// An episode as its program or driver knows it.
pub(super) struct AgentEpisode {
    pub key: String,
    pub name: String,
    /// Identifier that all samples of the row share.
    pub group: String,
    pub seed: u64,
    /// Seed of the calls' random numbers; never disclosed.
    pub seed_of_calls: u64,
    pub row: Value,
}

impl AgentContext<'_> {
    fn play_once(&self, agent: &StagedAgent, episode: AgentEpisode) -> ProgramOutcome {
        let AgentEpisode { key, name, seed, row, .. } = episode;
        let own = [
            ("OPENAI_API_KEY", key.clone()),
            ("ANTHROPIC_API_KEY", key),
            ("RLHOST_EPISODE", name),
            ("RLHOST_SEED", seed.to_string()),
        ];
        let variables: Vec<(&str, String)> = self.addresses().into_iter().chain(own).collect();
        program::run(&agent.entry, &variables, format!("{row}\n"), &self.generation.discarded)
    }

    /// Plays an episode with an idle program, or starts a new one. Returns the outcome, and whether the program had played before.
    fn play_persistent(&self, agent: &StagedAgent, episode: &AgentEpisode) -> (ProgramOutcome, bool) {
        let idle = || agent.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended since its last episode is replaced.
        let waiting = std::iter::from_fn(|| idle().pop()).find_map(|mut program| program.is_running().then_some(program));
        let is_used = waiting.is_some();
        let started = waiting.map_or_else(|| PersistentProgram::start(&agent.entry, &self.addresses()), Ok);
        let program = match started {
            Ok(program) => program,
            Err(reason) => return (ProgramOutcome::from_failure(reason), is_used),
        };
        let AgentEpisode { key, name, seed, row, .. } = episode;
        let line = json!({"row": row, "base_url": self.base_url(), "api_key": key, "episode": name, "seed": seed});
        let (outcome, left) = program.play(&format!("{line}\n"), agent.entry.timeout(), &self.generation.discarded);
        idle().extend(left);
        (outcome, is_used)
    }

    fn base_url(&self) -> String {
        format!("http://{}/v1", self.stage.server.address())
    }

    fn addresses(&self) -> [(&'static str, String); 2] {
        [("OPENAI_BASE_URL", self.base_url()), ("ANTHROPIC_BASE_URL", format!("http://{}", self.stage.server.address()))]
    }
}

/// Returns a row as an agent gets it: its columns, and the prompt, a text or a list of messages.
fn row_of(prompt: &Prompt) -> Value {
    let mut row = prompt.columns.clone();
    let asked = if prompt.chat { json!(prompt.conversation()) } else { json!(prompt.text) };
    row.insert("prompt".to_owned(), asked);
    Value::Object(row)
}
