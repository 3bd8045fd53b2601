//! Identifies the policy version that wrote completions in the rollout log.

use crate::Result;
use crate::config::hex;
use crate::model::PolicyModel;
use crate::ops;
use crate::rollout_log::RolloutLogEntry;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Number of versions that are remembered: more than the maximum staleness of completions.
const MOST_VERSIONS: usize = 4096;

/// A version of the policy, as the rollout log identifies it.
#[derive(Clone)]
pub(super) struct Fingerprint {
    /// Number of updates.
    pub version: u64,
    /// Checksum of the trained weights.
    pub weights: String,
}

/// Checksums of a policy's trained weights, computed once per version.
#[derive(Default)]
pub(super) struct Fingerprints {
    versions: BTreeMap<u64, String>,
}

impl Fingerprints {
    /// Returns the fingerprint of this version.
    pub(super) fn of_version(&mut self, policy: &PolicyModel, version: u64) -> Result<Fingerprint> {
        let weights = match self.versions.get(&version) {
            Some(weights) => weights.clone(),
            None => digest_of_weights(policy)?,
        };
        self.versions.insert(version, weights.clone());
        while self.versions.len() > MOST_VERSIONS {
            self.versions.pop_first();
        }
        Ok(Fingerprint { version, weights })
    }

    /// Returns whether an entry's completions are known to be written by other weights than those of its version.
    pub(super) fn differ(&self, entry: &RolloutLogEntry) -> bool {
        self.versions.get(&entry.version).is_some_and(|weights| *weights != entry.weights)
    }
}

fn digest_of_weights(policy: &PolicyModel) -> Result<String> {
    let mut hash = Sha256::new();
    for (name, weight) in policy.weights().trained() {
        hash.update(name.as_bytes());
        hash.update(ops::checksum(weight)?.to_le_bytes());
    }
    Ok(short(hash))
}

impl Fingerprint {
    /// Returns whether this version wrote an entry's completions.
    pub(super) fn wrote(&self, entry: &RolloutLogEntry) -> bool {
        entry.version == self.version && entry.weights == self.weights
    }
}

/// Returns the first digits of a hash, in hexadecimal.
pub(super) fn short(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}
