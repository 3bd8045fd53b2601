//! A rollout source with a log, so that a resumed run trains on the same completions as before.

use super::episode_store::EpisodeStore;
use super::fingerprint::{Fingerprint, Fingerprints, short};
use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource, RunHome, SavedPlace};
use crate::config::words::counted;
use crate::config::{AgentEntry, RolloutLogMode as Kept};
use crate::dataset::Prompt;
use crate::dist::World;
use crate::model::{PolicyModel, PromptPass};
use crate::phase::Phase;
use crate::plan::RolloutPlan;
use crate::rollout_log::{GenerationKey, LoggedGeneration, LoggedMetric, RolloutLog, RolloutLogEntry};
use crate::run::RunFiles;
use crate::stored_rollouts::fault_of;
use crate::{Error, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Logs the rollouts of another source. A generation that is already in the log, for the same prompts and from a policy with the same
/// weights, is read instead of generated.
pub(super) struct LoggingSource {
    source: Box<dyn RolloutSource>,
    kept: Kept,
    settings: GenerationSettings,
    /// The step that the run resumed from, or 0.
    first_version: u64,
    world: Rc<World>,
    /// Log of the run, on the first rank.
    log: Option<RolloutLog>,
    fingerprints: Fingerprints,
    /// Finished episodes of this rank in the current generation.
    episodes: Option<RolloutLog>,
    /// Generations that were begun ahead, or that need not be since the log has them.
    begun: BTreeMap<u64, PrefetchedGeneration>,
    /// Positions of checkpoints that may not be on disk yet.
    saves: Vec<SavedPlace>,
}

/// A generation that was begun ahead.
enum PrefetchedGeneration {
    /// The source generates it with this version of the policy.
    Writing(Fingerprint),
    /// The log has the generation.
    InLog,
}

/// Settings that determine completions, apart from weights, prompts and requests.
#[derive(Clone)]
pub(super) struct GenerationSettings {
    text: String,
    has_episodes: bool,
}

impl GenerationSettings {
    /// Creates the settings of a run with this plan.
    pub(super) fn new(plan: &RolloutPlan) -> Self {
        let RolloutPlan { seed, dtype, max_completion_length, stop, episode_limits, agents, .. } = plan;
        // The form for at most one agent is that of logs from before a run could have several.
        let agents = match &agents[..] {
            [] => Value::Null,
            [agent] => without_weight(agent),
            all => all.iter().map(without_weight).collect(),
        };
        let text = format!("{seed} {dtype:?} {max_completion_length} {stop:?} {episode_limits:?} {agents}");
        Self { text, has_episodes: plan.has_episodes() }
    }

    /// Returns whether completions are episodes.
    pub(super) fn has_episodes(&self) -> bool {
        self.has_episodes
    }

    /// Returns a digest of what determines the completions of a request, apart from weights and prompts.
    pub(super) fn digest(&self, request: &RolloutRequest<'_>) -> String {
        let RolloutRequest { samples, sampling, logp_temperature, environments, .. } = request;
        let mut hash = Sha256::new();
        hash.update(format!("{samples} {sampling:?} {logp_temperature} {}", self.text));
        for (plugin, entry) in environments.plugins.iter().zip(environments.entries) {
            hash.update(format!("{} {}", plugin.hash(), json!(entry.config)));
        }
        short(hash)
    }
}

/// Returns an agent without the weight of its reward, which does not change completions.
fn without_weight(agent: &AgentEntry) -> Value {
    let mut agent = json!(agent);
    agent.as_object_mut().map(|agent| agent.remove("weight"));
    agent
}

/// Identity of a generation, common to all ranks' requests.
pub(super) struct GenerationIdentity {
    pub key: GenerationKey,
    /// Digest of all prompts.
    pub prompts: String,
    /// Number of prompts of the lower ranks, and number of all prompts.
    first: usize,
    all: usize,
    is_first_rank: bool,
}

impl GenerationIdentity {
    /// Identifies a generation, of which each rank requests a part.
    ///
    /// # Errors
    /// If another rank has failed.
    pub(super) fn new(request: &RolloutRequest<'_>, version: u64, world: &World) -> Result<Self> {
        let digest = |prompt: &Arc<Prompt>| {
            let mut hash = Sha256::new();
            hash.update((prompt.row as u64).to_le_bytes());
            prompt.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
            <[u8; 32]>::from(hash.finalize())
        };
        let ranks = world.gather("prompts of a generation", request.prompts.iter().map(digest).collect::<Vec<_>>())?;
        let first = ranks.iter().take(world.rank()).map(Vec::len).sum();
        let all = ranks.iter().map(Vec::len).sum();
        let mut hash = Sha256::new();
        ranks.iter().flatten().for_each(|digest| hash.update(digest));
        let (prompts, generation) = (short(hash), request.generation);
        let key = match request.phase {
            Phase::Train => GenerationKey::Train { generation },
            Phase::Eval => GenerationKey::Eval { generation, step: version, of: prompts.clone() },
        };
        Ok(Self { key, prompts, first, all, is_first_rank: world.is_first() })
    }

    /// Returns this rank's part of a logged generation.
    ///
    /// # Errors
    /// The mismatch, if the generation does not belong to these prompts and this policy.
    pub(super) fn own_part(
        &self,
        generation: LoggedGeneration,
        request: &RolloutRequest<'_>,
        policy: &PolicyModel,
        has_episodes: bool,
    ) -> std::result::Result<RolloutBatch, String> {
        let LoggedGeneration { rollouts, episodes, metrics } = generation;
        let rows = self.all * request.samples;
        let in_order = rollouts.iter().enumerate().all(|(row, rollout)| rollout.prompt == row / request.samples.max(1));
        if rollouts.len() != rows || !in_order {
            return Err(format!("it has {} completions instead of {rows}, or in another order", rollouts.len()));
        }
        if episodes.len() != if has_episodes { rows } else { 0 } {
            let wanted = if has_episodes { "each is to be one, of an environment or an agent" } else { "none is to be one" };
            return Err(format!("{} of {} completions are episodes, and {wanted}", episodes.len(), rollouts.len()));
        }
        if let Some(row) = episodes.iter().position(|episode| episode.rewards.len() != episode.turns.len()) {
            return Err(format!("the episode of completion {row} has not a reward for each turn"));
        }
        let range = self.first * request.samples..(self.first + request.prompts.len()) * request.samples;
        let mut batch = RolloutBatch { elsewhere: true, ..RolloutBatch::default() };
        for (row, mut rollout) in rollouts.into_iter().enumerate().filter(|(row, _)| range.contains(row)) {
            rollout.prompt -= self.first;
            let prompt = &request.prompts[rollout.prompt].tokens;
            if let Some(fault) = fault_of(&rollout, prompt, policy.architecture()) {
                return Err(format!("completion {row} {fault}"));
            }
            batch.rollouts.push(rollout);
        }
        batch.episodes =
            episodes.into_iter().enumerate().filter(|(row, _)| range.contains(row)).map(|(_, episode)| episode).collect();
        if self.is_first_rank {
            batch.metrics = metrics.into_iter().map(LoggedMetric::into_metric).collect();
        }
        Ok(batch)
    }
}

/// Returns the folder of this rank's episodes in the current generation.
fn unfinished(run: &Path, world: &World) -> PathBuf {
    RunFiles(run).rollouts().join(format!("unfinished-{}", world.rank()))
}

impl LoggingSource {
    /// Creates a source that logs the rollouts of `source`, for a run with this plan.
    ///
    /// # Errors
    /// If there is a log that can't be read.
    pub(super) fn new(source: Box<dyn RolloutSource>, home: &RunHome, plan: &RolloutPlan, world: Rc<World>) -> Result<Self> {
        let log = world.is_first().then(|| RolloutLog::open(RunFiles(&home.folder).rollouts())).transpose()?;
        let episodes = Some(RolloutLog::open_inner(unfinished(&home.folder, &world))?);
        log.iter().chain(&episodes).for_each(RolloutLog::remove_leftovers);
        let (kept, settings) = (plan.logs.logged, GenerationSettings::new(plan));
        let (fingerprints, begun, saves) = (Fingerprints::default(), BTreeMap::new(), Vec::new());
        Ok(Self { source, kept, settings, first_version: home.first_step, world, log, fingerprints, episodes, begun, saves })
    }

    /// Returns whether the log has this generation, for the same prompts and from this policy or, if it was begun ahead, from one that the
    /// run had before it resumed. If another policy wrote it, the run diverges from the logged one here, so later entries are dropped.
    fn is_logged(&mut self, identity: &GenerationIdentity, sampling: &str, fingerprint: &Fingerprint) -> Result<bool> {
        let (log, first_version) = (&mut self.log, self.first_version);
        self.world.broadcast("whether a generation is in the rollout log", || {
            let Some(log) = log else { return Ok(false) };
            let Some(entry) = log.find(&identity.key) else { return Ok(false) };
            let is_own =
                fingerprint.wrote(entry) || entry.version < first_version && matches!(entry.key, GenerationKey::Train { .. });
            let fits = is_own && entry.prompts == identity.prompts && entry.sampling == sampling;
            if !fits {
                tracing::info!("{}: written again, since what it depends on has changed since it was logged", identity.key);
                log.forget_since(fingerprint.version)?;
            }
            Ok(fits)
        })
    }

    /// Reads this rank's part of a generation; none if its file is missing or damaged, in which case it is generated again.
    fn read(
        &self,
        identity: &GenerationIdentity,
        request: &RolloutRequest<'_>,
        policy: &PolicyModel,
    ) -> Result<Option<RolloutBatch>> {
        let generation: Option<LoggedGeneration> = self.world.broadcast("a generation of the rollout log", || {
            let entry = self.log.as_ref().and_then(|log| Some((log, log.find(&identity.key)?)));
            let read = entry.map(|(log, entry)| log.read(entry)).transpose();
            read.or_else(|error| {
                tracing::warn!("{error}; its completions are written again");
                Ok::<_, Error>(None)
            })
        })?;
        let Some(generation) = generation else { return Ok(None) };
        if !generation.episodes.is_empty() && generation.episodes.iter().all(|episode| episode.failed.is_some()) {
            // Nothing was learned from them, and what made them fail may have been fixed.
            return Ok(None);
        }
        let completions = generation.rollouts.len();
        let batch = identity.own_part(generation, request, policy, self.settings.has_episodes).map_err(|detail| {
            let folder = self.log.as_ref().map_or(Path::new("rollouts"), RolloutLog::folder);
            Error::unusable(folder, format!("{}: {detail}", identity.key))
        })?;
        if matches!(identity.key, GenerationKey::Train { .. }) && self.world.is_first() {
            tracing::info!("{}: {completions} completions from the run's log", identity.key);
        }
        Ok(Some(batch))
    }

    /// Generates with the underlying source. Episodes that had ended before the run was interrupted are not played again.
    fn write(
        &mut self,
        request: &RolloutRequest<'_>,
        policy: PolicyVersion<'_>,
        sampling: &str,
        fingerprint: &Fingerprint,
    ) -> Result<RolloutBatch> {
        let log = if request.phase == Phase::Train { self.episodes.take() } else { None };
        let Some(log) = log else { return self.source.roll_out(request, policy) };
        let architecture = policy.policy.architecture().clone();
        let ended = EpisodeStore::new(log, fingerprint.clone(), request.generation, sampling.to_owned(), architecture);
        let batch = self.source.roll_out(&RolloutRequest { ended: Some(&ended), ..*request }, policy);
        let (log, found) = ended.into_log();
        self.episodes = Some(log);
        if found > 0 {
            let played = (request.prompts.len() * request.samples).saturating_sub(found);
            let ended = counted(found as u64, "episode");
            tracing::info!(
                "generation {}: {ended} had ended before the run was interrupted; {played} were played again",
                request.generation
            );
        }
        batch
    }

    /// Gathers the ranks' parts of a generation and adds them to the log.
    fn append(
        &mut self,
        identity: GenerationIdentity,
        sampling: String,
        fingerprint: Fingerprint,
        batch: &RolloutBatch,
    ) -> Result<()> {
        let mut rollouts = batch.rollouts.clone();
        rollouts.iter_mut().for_each(|rollout| rollout.prompt += identity.first);
        let own = LoggedGeneration {
            rollouts,
            episodes: batch.episodes.clone(),
            metrics: batch.metrics.iter().filter_map(LoggedMetric::new).collect(),
        };
        let (parts, key) = (self.world.gather("a generation to log", own)?, identity.key.clone());
        if let Some(log) = &mut self.log {
            append_parts(log, parts, identity, sampling, fingerprint)?;
        }
        match &mut self.episodes {
            Some(episodes) if matches!(key, GenerationKey::Train { .. }) => episodes.clear(),
            _ => Ok(()),
        }
    }
}

/// Adds the ranks' parts of a generation to the log.
fn append_parts(
    log: &mut RolloutLog,
    parts: Vec<LoggedGeneration>,
    identity: GenerationIdentity,
    sampling: String,
    fingerprint: Fingerprint,
) -> Result<()> {
    let mut generation = LoggedGeneration::default();
    for mut part in parts {
        generation.rollouts.append(&mut part.rollouts);
        generation.episodes.append(&mut part.episodes);
        generation.metrics.append(&mut part.metrics);
    }
    let GenerationIdentity { key, prompts, .. } = identity;
    let completions = generation.rollouts.len();
    let Fingerprint { version, weights } = fingerprint;
    log.append(&generation, |sha256| RolloutLogEntry { key, version, weights, prompts, sampling, completions, sha256 })
}

impl RolloutSource for LoggingSource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        let identity = GenerationIdentity::new(request, policy.version, &self.world)?;
        let sampling = self.settings.digest(request);
        let begun = if request.phase == Phase::Train { self.begun.remove(&request.generation) } else { None };
        let (fingerprint, is_logged) = match begun {
            Some(PrefetchedGeneration::Writing(fingerprint)) => (fingerprint, false),
            Some(PrefetchedGeneration::InLog) => (self.fingerprints.of_version(policy.policy, policy.version)?, true),
            None => {
                let fingerprint = self.fingerprints.of_version(policy.policy, policy.version)?;
                let is_logged = self.is_logged(&identity, &sampling, &fingerprint)?;
                (fingerprint, is_logged)
            }
        };
        if is_logged && let Some(batch) = self.read(&identity, request, policy.policy)? {
            return Ok(batch);
        }
        let batch = self.write(request, policy, &sampling, &fingerprint)?;
        self.append(identity, sampling, fingerprint, &batch)?;
        Ok(batch)
    }

    fn begin(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<()> {
        let identity = GenerationIdentity::new(request, policy.version, &self.world)?;
        let fingerprint = self.fingerprints.of_version(policy.policy, policy.version)?;
        let begun = if self.is_logged(&identity, &self.settings.digest(request), &fingerprint)? {
            PrefetchedGeneration::InLog
        } else {
            self.source.begin(request, policy)?;
            PrefetchedGeneration::Writing(fingerprint)
        };
        self.begun.insert(request.generation, begun);
        Ok(())
    }

    fn discard_begun(&mut self) {
        self.begun.clear();
        self.source.discard_begun();
    }

    fn take_prompt_pass(&mut self, prompts: &[Arc<Prompt>], version: u64) -> Option<PromptPass> {
        self.source.take_prompt_pass(prompts, version)
    }

    fn before_save(&mut self, place: SavedPlace, is_saved: &dyn Fn(u64) -> bool) -> Result<()> {
        if self.kept != Kept::Unsaved {
            return Ok(());
        }
        let saved = self.saves.iter().rposition(|earlier| is_saved(earlier.step));
        if let (Some(saved), Some(log)) = (saved.map(|at| self.saves[at]), &mut self.log) {
            log.forget_before(saved.generation, saved.step)?;
            self.saves.retain(|earlier| earlier.step >= saved.step);
        }
        self.saves.push(place);
        Ok(())
    }

    fn relocate(&mut self, run: &Path) {
        if let Some(log) = &mut self.log {
            log.relocate(RunFiles(run).rollouts());
        }
        if let Some(episodes) = &mut self.episodes {
            episodes.relocate(unfinished(run, &self.world));
        }
        self.source.relocate(run);
    }
}
