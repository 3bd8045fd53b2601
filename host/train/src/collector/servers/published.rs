//! Versions of the policy's weights, as files that servers read, and the proof that a server computes with them.

use crate::config::RolloutSync;
use crate::model::{self, ModelFolder, Policy, Selected};
use crate::ops::Forest;
use crate::plan::SyncFolder;
use crate::{Error, Result};
use rand::TryRng;
use rand::rngs::SysRng;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Tokens of the probe at most.
const PROBE: usize = 256;

/// A text whose log-probabilities the trainer has computed, for servers to compute as well.
#[derive(Debug)]
pub(super) struct Probe {
    pub tokens: Vec<u32>,
    /// Of each token but the first.
    logp: Vec<f32>,
}

impl Probe {
    fn new(policy: &Policy, tokens: &[u32]) -> Result<Self> {
        let tokens = tokens[..tokens.len().min(PROBE)].to_vec();
        let mut forest = Forest::new();
        let segment = forest.push(&tokens, None);
        let mut selected = Selected::default();
        selected.push_segment(&forest, segment);
        let logp = policy.frozen().score(&forest, &selected, 1.0)?.logp;
        Ok(Self { tokens, logp })
    }

    /// Returns the mean difference of a server's log-probabilities from the trainer's.
    pub(super) fn difference(&self, logp: &[f32]) -> f64 {
        let differences = self.logp.iter().zip(logp).map(|(own, other)| f64::from((own - other).abs()));
        differences.sum::<f64>() / self.logp.len().max(1) as f64
    }
}

/// A version of the policy that servers may load.
#[derive(Debug)]
pub(super) struct Published {
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
    newest: Option<Arc<Published>>,
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
    pub(super) fn publish(&mut self, policy: &Policy, version: u64) -> Result<Arc<Published>> {
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
        let published = Arc::new(Published { version, sync: self.sync, folder, name, probe });
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
