//! Which version of the policy wrote completions, as the log of rollouts names it.

use crate::Result;
use crate::config::hex;
use crate::model::Policy;
use crate::ops;
use crate::rollout_log::Entry;
use sha2::{Digest, Sha256};

/// A version of the policy, as the log names it.
#[derive(Clone)]
pub(super) struct Author {
    /// Number of updates.
    pub version: u64,
    /// Checksum of the trained weights.
    pub weights: String,
}

/// The checksum of a policy's trained weights, computed once for each version.
#[derive(Default)]
pub(super) struct WeightsDigest {
    newest: Option<Author>,
}

impl WeightsDigest {
    /// Returns the version with its checksum.
    pub(super) fn author(&mut self, policy: &Policy, version: u64) -> Result<Author> {
        if let Some(newest) = self.newest.as_ref().filter(|newest| newest.version == version) {
            return Ok(newest.clone());
        }
        let author = Author { version, weights: digest_of_weights(policy)? };
        Ok(self.newest.insert(author).clone())
    }
}

fn digest_of_weights(policy: &Policy) -> Result<String> {
    let mut hash = Sha256::new();
    for (name, weight) in policy.weights().trained() {
        hash.update(name.as_bytes());
        hash.update(ops::checksum(weight)?.to_le_bytes());
    }
    Ok(short(hash))
}

impl Author {
    /// Returns whether this version wrote an entry's completions.
    pub(super) fn wrote(&self, entry: &Entry) -> bool {
        entry.version == self.version && entry.weights == self.weights
    }
}

/// Returns the beginning of a hash, in hexadecimal.
pub(super) fn short(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}
