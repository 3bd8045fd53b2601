//! Rollouts of inference servers: vLLM or `rlhost serve`, on this machine or others.
//!
//! Each version of the policy is written to files, which the servers load before they get further requests. A completion counts only if all
//! of its tokens were written with the expected version: according to the server itself, and because the server computes the same
//! log-probabilities of a text as the trainer.

mod balance;
mod connection;
mod fleet;
mod publisher;

use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource, metrics_of_staleness};
use super::turns::TurnGenerator;
use crate::activity::{Activity, ProgressTask};
use crate::config::RolloutSync;
use crate::dataset::Prompt;
use crate::dist::World;
use crate::model::{ModelFolder, PromptPass};
use crate::plan::{RolloutPlan, ServerPlan};
use crate::plugin::{Metric, Reduction};
use crate::rollout::Rollout;
use crate::rollout_log::LoggedMetric;
use crate::{Error, Result};
use connection::Connection;
use fleet::{CompletionJob, Fleet, JobBatch, JobBatchResult};
use publisher::Publisher;
use rlhost_web::inference::{CompletionRequest, InferenceClient, RandomStreamId, SamplingParameters};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// Environment variable with the servers' API key.
pub(crate) const KEY: &str = "RLHOST_ROLLOUT_API_KEY";

/// Maximum number of completions per request.
const MOST_SAMPLES: usize = 64;

/// Rollout source that uses inference servers. The first rank sends the requests of all ranks.
pub(super) struct ServerSource {
    turns: Rc<TurnGenerator>,
    plan: Rc<RolloutPlan>,
    servers: ServerPlan,
    source: ModelFolder,
    world: Rc<World>,
    running: Option<RunningFleet>,
}

/// A prompt as sent to servers.
#[derive(Deserialize, Serialize)]
struct ServedPrompt {
    row: u64,
    tokens: Vec<u32>,
}

/// Completions that servers have written for all ranks.
#[derive(Deserialize, Serialize)]
struct ServerRollouts {
    rollouts: Vec<Rollout>,
    metrics: Vec<LoggedMetric>,
    warnings: Vec<String>,
}

/// The fleet and its publisher, created with the first prompts.
struct RunningFleet {
    // Dropped first, so that servers unload what they have read before its files are deleted.
    fleet: Fleet,
    publisher: Publisher,
    /// Submitted generations, by number.
    begun: BTreeMap<u64, SubmittedGeneration>,
}

/// A generation that servers are writing.
struct SubmittedGeneration {
    outcome: Receiver<JobBatchResult>,
    /// Seconds that writing the weights took.
    published: f64,
}

impl ServerSource {
    /// Creates a source that uses these servers; a published policy takes its other files from `source`.
    pub(super) fn new(
        turns: Rc<TurnGenerator>,
        plan: Rc<RolloutPlan>,
        servers: ServerPlan,
        source: ModelFolder,
        world: Rc<World>,
    ) -> Self {
        Self { turns, plan, servers, source, world, running: None }
    }

    fn running(&mut self, policy: PolicyVersion<'_>, first: &ServedPrompt) -> Result<&mut RunningFleet> {
        if self.running.is_none() {
            let ServerPlan { urls, sync, folder, timeout, .. } = &self.servers;
            let sync = sync.unwrap_or(match policy.policy.weights().lora {
                Some(_) => RolloutSync::Lora,
                None => RolloutSync::Disk,
            });
            let publisher = Publisher::new(folder, sync, self.source.clone(), probe_of(first))?;
            let connection = |url: &String| Ok(Connection::new(client(url)?, *timeout));
            let connections = urls.iter().map(connection).collect::<Result<Vec<_>>>()?;
            let fleet = Fleet::start(connections, *timeout, self.plan.max_num_seqs);
            let fleet = fleet.map_err(|e| Error::setting("rollout_server", format!("a thread can't be started: {e}")))?;
            self.running = Some(RunningFleet { fleet, publisher, begun: BTreeMap::new() });
        }
        self.running.as_mut().ok_or(Error::Bug("no rollout servers"))
    }

    /// Submits the policy and the requests for all ranks' prompts.
    fn submit(
        &mut self,
        prompts: &[ServedPrompt],
        request: &RolloutRequest<'_>,
        policy: PolicyVersion<'_>,
    ) -> Result<SubmittedGeneration> {
        let first = prompts.first().ok_or(Error::Bug("no prompts"))?;
        let jobs = self.jobs(prompts, request);
        let begun = Instant::now();
        let running = self.running(policy, first)?;
        running.fleet.publish(running.publisher.publish(policy.policy, policy.version)?);
        Ok(SubmittedGeneration { outcome: running.fleet.submit(jobs), published: begun.elapsed().as_secs_f64() })
    }

    /// Returns the requests for all completions, in the order of prompts and samples.
    fn jobs(&self, prompts: &[ServedPrompt], request: &RolloutRequest<'_>) -> Vec<CompletionJob> {
        let sampling = request.sampling;
        let parameters = SamplingParameters {
            max_tokens: self.plan.max_completion_length,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            ends: self.turns.ends().to_vec(),
            stop: self.plan.stop.clone(),
        };
        let mut jobs = Vec::new();
        for prompt in prompts {
            for first in (0..request.samples).step_by(MOST_SAMPLES) {
                let random = RandomStreamId {
                    seed: self.plan.seed,
                    generation: request.generation,
                    row: prompt.row,
                    sample: first as u64,
                };
                let request = CompletionRequest {
                    model: String::new(),
                    adapter: None,
                    prompt: prompt.tokens.clone(),
                    samples: MOST_SAMPLES.min(request.samples - first),
                    parameters: parameters.clone(),
                    salt: String::new(),
                    random,
                    logp_temperature: request.logp_temperature,
                };
                jobs.push(CompletionJob { request, place: jobs.len() });
            }
        }
        jobs
    }
}

/// Creates a client for a server, with the API key from the environment.
///
/// # Errors
/// If the URL is invalid, or the key has characters that a header may not have.
pub(crate) fn client(url: &str) -> Result<InferenceClient> {
    let key = std::env::var(KEY).ok().filter(|key| !key.is_empty());
    if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(Error::setting("rollout_server", format!("{KEY} has characters that an API key can't have")));
    }
    InferenceClient::new(url, key).map_err(|detail| Error::setting("rollout_server", detail))
}

/// Returns the text of the probe: a prompt, with its tokens repeated if it is too short.
fn probe_of(prompt: &ServedPrompt) -> Vec<u32> {
    const LEAST: usize = 16;
    let mut tokens = prompt.tokens.clone();
    while !tokens.is_empty() && tokens.len() < LEAST {
        tokens.extend_from_within(..);
    }
    tokens
}

impl ServerSource {
    /// Returns the prompts of all ranks in order, and the range of this rank's.
    fn all_prompts(&self, request: &RolloutRequest<'_>) -> Result<(Vec<ServedPrompt>, Range<usize>)> {
        let served = |prompt: &Arc<Prompt>| ServedPrompt { row: prompt.row as u64, tokens: prompt.tokens.clone() };
        let ranks = self.world.gather("prompts for rollout servers", request.prompts.iter().map(served).collect::<Vec<_>>())?;
        let first = ranks.iter().take(self.world.rank()).map(Vec::len).sum();
        Ok((ranks.into_iter().flatten().collect(), first..first + request.prompts.len()))
    }

    /// Waits for a submitted generation, and returns the completions of all ranks.
    fn written(
        &self,
        submitted: SubmittedGeneration,
        request: &RolloutRequest<'_>,
        policy: PolicyVersion<'_>,
    ) -> Result<ServerRollouts> {
        let SubmittedGeneration { outcome, published } = submitted;
        let waiting = Instant::now();
        let outcome = outcome.recv().map_err(|_| Error::Bug("the thread of the rollout servers has ended"))?;
        let (mut batch, waited) = (outcome.map_err(Error::RolloutServers)?, waiting.elapsed());
        let metrics = metrics(&batch, policy.version, [published, waited.as_secs_f64()]);
        let (metrics, warnings) = (metrics.iter().filter_map(LoggedMetric::new).collect(), std::mem::take(&mut batch.warnings));
        let vocabulary = policy.policy.architecture().vocab_size;
        let mut rollouts = Vec::new();
        for done in batch.done {
            for completion in done.completions {
                if let Some(token) = completion.tokens.iter().find(|token| **token as usize >= vocabulary) {
                    let detail =
                        format!("a server sampled token {token}, and the model has {vocabulary}: it serves another model");
                    return Err(Error::RolloutServers(detail));
                }
                let number = rollouts.len();
                rollouts.push(Rollout {
                    prompt: number / request.samples,
                    sample: number % request.samples,
                    tokens: completion.tokens,
                    logp: completion.logp,
                    finished: completion.finished,
                    policy_version: done.version,
                    ..Rollout::default()
                });
            }
        }
        Ok(ServerRollouts { rollouts, metrics, warnings })
    }

    /// Returns this rank's part of the completions, with the metrics on the first rank.
    fn own_part(&self, written: ServerRollouts, own: &Range<usize>) -> RolloutBatch {
        let ServerRollouts { rollouts, metrics, warnings } = written;
        let rollouts = rollouts.into_iter().filter(|rollout| own.contains(&rollout.prompt));
        RolloutBatch {
            rollouts: rollouts.map(|rollout| Rollout { prompt: rollout.prompt - own.start, ..rollout }).collect(),
            metrics: self.world.once(metrics).map(LoggedMetric::into_metric).collect(),
            warnings: self.world.once(warnings).collect(),
            elsewhere: true,
            ..RolloutBatch::default()
        }
    }
}

impl RolloutSource for ServerSource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        let (prompts, own) = self.all_prompts(request)?;
        if prompts.is_empty() {
            return Ok(RolloutBatch::default());
        }
        let _task = ProgressTask::new(Activity::Generating);
        let world = self.world.clone();
        let written = world.broadcast("completions of rollout servers", || {
            let begun = self.running.as_mut().and_then(|running| running.begun.remove(&request.generation));
            let submitted = begun.map_or_else(|| self.submit(&prompts, request, policy), Ok)?;
            self.written(submitted, request, policy)
        })?;
        Ok(self.own_part(written, &own))
    }

    fn begin(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<()> {
        let (prompts, _) = self.all_prompts(request)?;
        if !self.world.is_first() {
            return Ok(());
        }
        let submitted = self.submit(&prompts, request, policy)?;
        if let Some(running) = &mut self.running {
            running.begun.insert(request.generation, submitted);
        }
        Ok(())
    }

    fn discard_begun(&mut self) {
        self.running.iter_mut().for_each(|running| running.begun.clear());
    }

    fn take_prompt_pass(&mut self, _: &[Arc<Prompt>], _: u64) -> Option<PromptPass> {
        None
    }
}

/// Returns the metrics of a generation that a policy of this version will learn from; `published` and `waited` are the seconds of writing
/// the weights and of waiting.
fn metrics(batch: &JobBatch, version: u64, [published, waited]: [f64; 2]) -> Vec<Metric> {
    let metric = |name: &str, value: f64, reduction| Metric { name: name.to_owned(), value, weight: 1.0, reduction };
    let staleness: Vec<f64> = batch.done.iter().map(|done| version.saturating_sub(done.version) as f64).collect();
    let own = [
        metric("rollout/servers", batch.servers as f64, Reduction::Min),
        metric("rollout/retried", batch.retried as f64, Reduction::Sum),
        metric("rollout/probe_difference", batch.difference, Reduction::Max),
        metric("rollout/publish_s", published, Reduction::Mean),
    ];
    metrics_of_staleness(&staleness, waited).into_iter().chain(own).collect()
}
