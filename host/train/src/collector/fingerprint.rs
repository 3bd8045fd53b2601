//! Which version of the policy wrote completions, as the log of rollouts names it.

use crate::Result;
use crate::config::hex;
use crate::model::PolicyModel;
use crate::ops;
use crate::rollout_log::RolloutLogEntry;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Number of versions that are remembered: more than completions are old.
const MOST_VERSIONS: usize = 4096;

/// A version of the policy, as the log names it.
#[derive(Clone)]
pub(super) struct Fingerprint {
    /// Number of updates.
    pub version: u64,
    /// Checksum of the trained weights.
    pub weights: String,
}

/// The checksums of a policy's trained weights, each computed once for a version.
#[derive(Default)]
pub(super) struct Fingerprints {
    versions: BTreeMap<u64, String>,
}

impl Fingerprints {
    /// Returns the version with its checksum.
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

    /// Returns whether other weights than those of this version wrote an entry's completions, as far as that is known.
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

/// Returns the beginning of a hash, in hexadecimal.
pub(super) fn short(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}
