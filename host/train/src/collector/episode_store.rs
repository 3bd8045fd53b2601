//! Finished episodes of a generation in progress. Each is written to disk at once, so that a killed run does not play it again.

use super::fingerprint::{Fingerprint, short};
use crate::config::printable_path;
use crate::dataset::Prompt;
use crate::episode::EpisodeOutcome;
use crate::model::Architecture;
use crate::plugin::Metric;
use crate::rollout::Rollout;
use crate::rollout_log::{GenerationKey, LoggedGeneration, LoggedMetric, RolloutLog, RolloutLogEntry};
use crate::stored_rollouts::fault_of;
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A finished episode.
pub(crate) struct FinishedEpisode {
    /// The rollout. Its prompt and sample are indices in the generation.
    pub rollout: Rollout,
    /// Outcome of the episode.
    pub episode: EpisodeOutcome,
    /// Metrics of the episode.
    pub metrics: Vec<Metric>,
}

/// Stores the finished episodes of a generation.
pub(crate) struct EpisodeStore {
    kept: Mutex<StoredEpisodes>,
    fingerprint: Fingerprint,
    generation: u64,
    /// Digest of what determines completions besides weights and prompts.
    sampling: String,
    architecture: Architecture,
}

struct StoredEpisodes {
    log: RolloutLog,
    /// Whether a failure to store episodes was already reported.
    warned: bool,
    found: usize,
}

impl EpisodeStore {
    /// Creates a store for a generation of this policy, in a separate log.
    pub(super) fn new(
        log: RolloutLog,
        fingerprint: Fingerprint,
        generation: u64,
        sampling: String,
        architecture: Architecture,
    ) -> Self {
        let kept = Mutex::new(StoredEpisodes { log, warned: false, found: 0 });
        Self { kept, fingerprint, generation, sampling, architecture }
    }

    /// Returns the log, and the number of episodes that were read from it.
    pub(super) fn into_log(self) -> (RolloutLog, usize) {
        let StoredEpisodes { log, found, .. } = self.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        (log, found)
    }

    /// Returns an episode of this prompt that had ended before the run was interrupted.
    pub(super) fn find(&self, prompt: &Prompt, sample: usize) -> Option<FinishedEpisode> {
        let mut kept = self.lock();
        let entry = kept.log.find(&self.key(prompt, sample))?.clone();
        if !self.fingerprint.wrote(&entry) || entry.prompts != digest(prompt) || entry.sampling != self.sampling {
            return None;
        }
        let read = kept.log.read(&entry).map_err(|error| error.to_string()).and_then(|generation| self.only(generation, prompt));
        match read {
            Ok(episode) => {
                kept.found += 1;
                Some(episode)
            }
            Err(detail) => {
                tracing::warn!("{}: {detail}; the episode is played again", printable_path(kept.log.folder()));
                None
            }
        }
    }

    /// Returns the only completion of a file.
    fn only(&self, generation: LoggedGeneration, prompt: &Prompt) -> Result<FinishedEpisode, String> {
        let LoggedGeneration { mut rollouts, mut episodes, metrics } = generation;
        let (Some(rollout), Some(episode), true, true) =
            (rollouts.pop(), episodes.pop(), rollouts.is_empty(), episodes.is_empty())
        else {
            return Err("a file has not one episode".into());
        };
        match fault_of(&rollout, &prompt.tokens, &self.architecture) {
            Some(fault) => Err(format!("an episode {fault}")),
            None if episode.rewards.len() != episode.turns.len() => Err("an episode has not a reward for each turn".into()),
            None => {
                Ok(FinishedEpisode { rollout, episode, metrics: metrics.into_iter().map(LoggedMetric::into_metric).collect() })
            }
        }
    }

    /// Stores an episode of this prompt. If that fails, a resumed run plays it again.
    pub(super) fn keep(&self, prompt: &Prompt, sample: usize, ended: &FinishedEpisode) {
        let generation = LoggedGeneration {
            rollouts: vec![ended.rollout.clone()],
            episodes: vec![ended.episode.clone()],
            metrics: ended.metrics.iter().filter_map(LoggedMetric::new).collect(),
        };
        let entry = |sha256| RolloutLogEntry {
            key: self.key(prompt, sample),
            version: self.fingerprint.version,
            weights: self.fingerprint.weights.clone(),
            prompts: digest(prompt),
            sampling: self.sampling.clone(),
            completions: 1,
            sha256,
        };
        let mut kept = self.lock();
        if let Err(error) = kept.log.append(&generation, entry)
            && !std::mem::replace(&mut kept.warned, true)
        {
            tracing::warn!("{error}; episodes that have ended would be played again by a resumed run");
        }
    }

    fn key(&self, prompt: &Prompt, sample: usize) -> GenerationKey {
        GenerationKey::Episode { generation: self.generation, row: prompt.row as u64, sample: sample as u64 }
    }

    fn lock(&self) -> MutexGuard<'_, StoredEpisodes> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the digest of a prompt's tokens.
fn digest(prompt: &Prompt) -> String {
    let mut hash = Sha256::new();
    prompt.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    short(hash)
}
