//! Publishes versions of the policy's weights as files that servers read, with a probe that verifies that a server computes with them.

use crate::config::RolloutSync;
use crate::model::{self, ModelFolder, PolicyModel, WeightStorage};
use crate::ops::logprob::log_sum_exp;
use crate::ops::{self, Forest};
use crate::plan::SyncFolder;
use crate::{Error, Result};
use candle_core::DType;
use rand::TryRng;
use rand::rngs::SysRng;
use rlhost_serve::folder_checksums;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Maximum number of tokens of the probe, and the number of its prefixes after which servers sample tokens.
const PROBE: usize = 256;
const BEGINNINGS: usize = 4;

/// Prefixes of a text, after each of which the trainer has computed the log-probabilities of all tokens. Servers sample tokens after the
/// prefixes and return theirs. Log-probabilities of prompts would say more, but vLLM 0.32 crashes if they are requested for an adapter
/// while it answers another request.
#[derive(Debug)]
pub(super) struct Probe {
    beginnings: Vec<Vec<u32>>,
    /// Log-probabilities of all tokens after each prefix.
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

    /// Returns the mean difference between a server's log-probabilities and the trainer's. `sample` returns tokens that the server sampled
    /// after a prefix, with their log-probabilities; it is called for all prefixes at once.
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
                // A token outside the model's vocabulary comes from another model.
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
    /// Number of updates that led to this version.
    pub version: u64,
    pub sync: RolloutSync,
    /// Folder of the adapter, or of the whole model.
    pub folder: PathBuf,
    /// Name of the version on servers, which no other run's policy has.
    pub name: String,
    pub probe: Probe,
    /// Tensors of the model that a server has beside an adapter, or has loaded.
    pub tensors: Arc<PublishedTensors>,
    pub numbers: PolicyNumbers,
    /// Number of tokens that the model can read.
    pub context: usize,
}

/// Tensors in a model folder, whose checksums are computed when a server is first compared with them.
#[derive(Debug)]
pub(super) struct PublishedTensors {
    folder: ModelFolder,
    checksums: OnceLock<Option<BTreeMap<String, String>>>,
}

impl PublishedTensors {
    /// Opens a folder. A server computes with the weights as they are stored, whatever the run does.
    fn open(folder: &Path) -> Result<Arc<Self>> {
        let folder = ModelFolder::open(folder)?.with_weight_storage(WeightStorage::AS_STORED);
        Ok(Arc::new(Self { folder, checksums: OnceLock::new() }))
    }

    /// Returns the checksum of each tensor; none if the files are no longer there.
    pub(super) fn checksums(&self) -> Option<&BTreeMap<String, String>> {
        self.checksums.get_or_init(|| folder_checksums(&self.folder).ok()).as_ref()
    }
}

/// Precision of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyNumbers {
    F32,
    Bf16,
    /// Its weights are in 8 or 4 bits.
    Quantized,
}

/// Writes versions of the policy into the run's own folder, and deletes the folder at the end.
pub(super) struct Publisher {
    source: ModelFolder,
    sync: RolloutSync,
    folder: PathBuf,
    /// Distinguishes this run's weights from those of other runs on the same servers.
    run: u32,
    /// Text of the dataset that servers are probed with.
    probe: Vec<u32>,
    /// The model under the policy's adapter.
    base: Arc<PublishedTensors>,
    /// The newest version, with files that servers may still read.
    newest: Option<Arc<PublishedPolicy>>,
    kept: Vec<PathBuf>,
}

impl Publisher {
    /// Creates a publisher that writes below a folder that servers see under the same path.
    ///
    /// # Errors
    /// If the folder can't be created.
    pub(super) fn new(place: &SyncFolder, sync: RolloutSync, source: ModelFolder, probe: Vec<u32>) -> Result<Self> {
        let below = &place.path;
        if place.is_own {
            // Left by a killed run.
            let _ = fs::remove_dir_all(below);
        }
        let run =
            SysRng.try_next_u32().map_err(|_| Error::setting("rollout_server", "the system has no random numbers for a name"))?;
        let absolute = std::path::absolute(below).unwrap_or_else(|_| below.clone());
        let folder = absolute.join(format!("weights-{run:08x}"));
        fs::create_dir_all(&folder)
            .map_err(|e| Error::setting("rollout_sync_dir", format!("{} can't be created: {e}", folder.display())))?;
        let base = PublishedTensors::open(if source.lora().is_some() { source.base() } else { source.path() })?;
        Ok(Self { source, sync, folder, run, probe, base, newest: None, kept: Vec::new() })
    }

    /// Returns this version of the policy, writing its files unless they already exist.
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
        // A server may still be reading the previous version.
        self.kept.push(self.folder.join(&name));
        while self.kept.len() > 2 {
            // What can't be deleted now is deleted with the folder.
            let _ = fs::remove_dir_all(self.kept.remove(0));
        }
        let probe = Probe::new(policy, &self.probe)?;
        let numbers = match policy.computes_in() {
            _ if self.source.weight_storage().scheme.is_some() => PolicyNumbers::Quantized,
            DType::BF16 => PolicyNumbers::Bf16,
            _ => PolicyNumbers::F32,
        };
        let context = policy.architecture().max_positions;
        let tensors = match self.sync {
            RolloutSync::Lora => Arc::clone(&self.base),
            RolloutSync::Disk => PublishedTensors::open(&folder)?,
        };
        let published = PublishedPolicy { version, sync: self.sync, folder, name, probe, tensors, numbers, context };
        let published = Arc::new(published);
        self.newest = Some(Arc::clone(&published));
        Ok(published)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Remaining files only take space.
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(below) = self.folder.parent() {
            let _ = fs::remove_dir(below);
        }
    }
}
