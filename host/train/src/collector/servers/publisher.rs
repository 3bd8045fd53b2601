//! Versions of the policy's weights, as files that servers read, and the proof that a server computes with them.

use crate::config::RolloutSync;
use crate::model::{self, ModelFolder, PolicyModel};
use crate::ops::logprob::log_sum_exp;
use crate::ops::{self, Forest};
use crate::plan::SyncFolder;
use crate::{Error, Result};
use rand::TryRng;
use rand::rngs::SysRng;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Tokens of the probe at most, and the number of its beginnings after which servers are asked for tokens.
const PROBE: usize = 256;
const BEGINNINGS: usize = 4;

/// Beginnings of a text, after which the trainer has computed the log-probability of every token, for servers to sample tokens with
/// theirs. The log-probabilities of prompts themselves say more, but vLLM 0.32 ends on a request for those of an adapter while it answers
/// another one.
#[derive(Debug)]
pub(super) struct Probe {
    beginnings: Vec<Vec<u32>>,
    /// Log-probabilities of all tokens after each.
    logp: Vec<Vec<f32>>,
}

impl Probe {
    fn new(policy: &PolicyModel, tokens: &[u32]) -> Result<Self> {
        let tokens = tokens[..tokens.len().min(PROBE)].to_vec();
        let mut forest = Forest::new();
        let segment = forest.push(&tokens, None);
        let lengths: Vec<usize> = (1..=BEGINNINGS).map(|part| (tokens.len() * part / BEGINNINGS).max(1)).collect();
        let first = forest.segments()[segment].range().start;
        let rows: Vec<usize> = lengths.iter().map(|length| first + length - 1).collect();
        let logits = ops::to_vec(&policy.frozen().logits(&forest, &rows)?)?;
        let logp = logits.chunks_exact(logits.len() / BEGINNINGS).map(|logits| {
            let log_sum = log_sum_exp(logits, 1.0);
            logits.iter().map(|z| z - log_sum).collect()
        });
        Ok(Self { beginnings: lengths.iter().map(|length| tokens[..*length].to_vec()).collect(), logp: logp.collect() })
    }

    /// Returns the mean difference of a server's log-probabilities from the trainer's: `sample` returns tokens that the server has sampled
    /// after a beginning, each with its log-probability. It is called for all beginnings at once.
    pub(super) fn difference<E: Send>(
        &self,
        sample: impl Fn(&[u32]) -> std::result::Result<Vec<(u32, f32)>, E> + Sync,
    ) -> std::result::Result<f64, E> {
        let sampled: Vec<std::result::Result<_, E>> = std::thread::scope(|scope| {
            let all = self.beginnings.iter().map(|beginning| scope.spawn(|| sample(beginning))).collect::<Vec<_>>();
            all.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let (mut sum, mut count) = (0.0, 0);
        for (sampled, logp) in sampled.into_iter().zip(&self.logp) {
            for (token, found) in sampled? {
                // A token that the model does not have comes from another model.
                let own = logp.get(token as usize).copied().unwrap_or(f32::INFINITY);
                sum += f64::from((own - found).abs());
                count += 1;
            }
        }
        Ok(sum / f64::from(count.max(1)))
    }
}

/// A version of the policy that servers may load.
#[derive(Debug)]
pub(super) struct PublishedPolicy {
    /// The number of updates that made it.
    pub version: u64,
    pub sync: RolloutSync,
    /// The adapter, or the whole model.
    pub folder: PathBuf,
    /// Its name on servers, which no other run's policy has.
    pub name: String,
    pub probe: Probe,
}

/// Writes versions of the policy into a folder of the run's own, and removes it with its files at the end.
pub(super) struct Publisher {
    source: ModelFolder,
    sync: RolloutSync,
    folder: PathBuf,
    /// Distinguishes this run's weights on servers that other runs use or have used.
    run: u32,
    /// A text of the dataset.
    probe: Vec<u32>,
    /// The newest version, and those files that servers may still read.
    newest: Option<Arc<PublishedPolicy>>,
    kept: Vec<PathBuf>,
}

impl Publisher {
    /// Creates a publisher that writes below a folder which servers see under the same path.
    ///
    /// # Errors
    /// If a folder can't be created there.
    pub(super) fn new(place: &SyncFolder, sync: RolloutSync, source: ModelFolder, probe: Vec<u32>) -> Result<Self> {
        let below = &place.path;
        if place.is_own {
            // What a run left that was killed.
            let _ = fs::remove_dir_all(below);
        }
        let run =
            SysRng.try_next_u32().map_err(|_| Error::setting("rollout_server", "the system has no random numbers for a name"))?;
        let absolute = std::path::absolute(below).unwrap_or_else(|_| below.clone());
        let folder = absolute.join(format!("weights-{run:08x}"));
        fs::create_dir_all(&folder)
            .map_err(|e| Error::setting("rollout_sync_dir", format!("{} can't be created: {e}", folder.display())))?;
        Ok(Self { source, sync, folder, run, probe, newest: None, kept: Vec::new() })
    }

    /// Returns the weights of this version as files, which are written unless they are already there.
    ///
    /// # Errors
    /// If they can't be written, or the probe can't be computed.
    pub(super) fn publish(&mut self, policy: &PolicyModel, version: u64) -> Result<Arc<PublishedPolicy>> {
        if let Some(newest) = self.newest.as_ref().filter(|newest| newest.version == version) {
            return Ok(Arc::clone(newest));
        }
        let name = format!("rlhost-{:08x}-{version}", self.run);
        let folder = self.folder.join(&name);
        let unwritten = |source: std::io::Error| Error::Write { path: folder.clone(), source };
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(unwritten)?;
        }
        fs::create_dir_all(&folder).map_err(unwritten)?;
        let weights = policy.copied_weights()?;
        let folder = match (self.sync, weights.lora) {
            (RolloutSync::Disk, Some(_)) => {
                let (adapter, whole) = (folder.join("adapter"), folder.join("model"));
                [&adapter, &whole].into_iter().try_for_each(fs::create_dir).map_err(unwritten)?;
                model::save(&weights, &self.source, &adapter)?;
                model::merge(&ModelFolder::open(&adapter)?, &whole)?;
                whole
            }
            _ => {
                model::save(&weights, &self.source, &folder)?;
                folder
            }
        };
        // The version before may still be read by a server.
        self.kept.push(self.folder.join(&name));
        while self.kept.len() > 2 {
            // What can't be removed now goes with the folder.
            let _ = fs::remove_dir_all(self.kept.remove(0));
        }
        let probe = Probe::new(policy, &self.probe)?;
        let published = Arc::new(PublishedPolicy { version, sync: self.sync, folder, name, probe });
        self.newest = Some(Arc::clone(&published));
        Ok(published)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Files that are left cost space only.
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(below) = self.folder.parent() {
            let _ = fs::remove_dir(below);
        }
    }
}
