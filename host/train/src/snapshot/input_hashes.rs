//! Hashes of what a resumed run reads again besides its dataset: it must be unchanged.

use crate::dataset::PromptSet;
use crate::dist::World;
use crate::ops;
use crate::sharding::LocalParameter;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Hashes of what a resumed run reads again. None if there is nothing, or if it is on a device, whose checksums differ from the CPU's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct InputHashes {
    /// Hash of frozen parameters, such as those under an adapter.
    base: Option<u64>,
    /// Hash of a reference model, unless it is in checkpoints or is the model under an adapter.
    reference: Option<u64>,
    /// Hash of the teacher.
    teacher: Option<u64>,
    /// Hash of the evaluation dataset.
    evaluated: Option<u64>,
    /// Whether checkpoints store the reference model, because it follows the policy or has followed it.
    pub(crate) keeps_reference: bool,
}

impl InputHashes {
    /// Hashes `weights` (the frozen parameters, the reference model unless checkpoints store it, and the teacher) and the evaluation
    /// dataset.
    ///
    /// # Errors
    /// If a tensor can't be read, or a rank has failed.
    pub(crate) fn new(weights: [Vec<LocalParameter<'_>>; 3], evaluated: Option<&PromptSet>, world: &World) -> Result<Self> {
        let [base, reference, teacher] = weights.map(|weights| sum_of(weights, world));
        let evaluated = evaluated.map(PromptSet::fingerprint).transpose()?;
        let evaluated = evaluated.map(|hash| short(hash.as_bytes()));
        Ok(Self { base: base?, reference: reference?, teacher: teacher?, evaluated, keeps_reference: false })
    }

    /// Returns the hashes without that of the evaluation dataset, for a run that now has another one.
    pub(crate) fn with_other_rows(self) -> Self {
        Self { evaluated: None, ..self }
    }

    /// Checks that everything that a checkpoint had is as it `was`.
    ///
    /// # Errors
    /// Names what has changed.
    pub(crate) fn check(self, was: Self) -> Result<()> {
        let differs = |now: Option<u64>, was: Option<u64>| now.zip(was).is_some_and(|(now, was)| now != was);
        let what = if differs(self.base, was.base) {
            "the model's weights under what is trained"
        } else if differs(self.reference, was.reference) {
            "the reference model's weights"
        } else if differs(self.teacher, was.teacher) {
            "the teacher's weights"
        } else if differs(self.evaluated, was.evaluated) {
            "the rows of eval_dataset"
        } else {
            return Ok(());
        };
        Err(Error::Changed(format!("{what} have changed since the run began; --allow-changed goes on with what is there now")))
    }
}

/// Returns the hash of weights on the CPU, each of which some rank has.
fn sum_of(weights: Vec<LocalParameter<'_>>, world: &World) -> Result<Option<u64>> {
    if weights.is_empty() || weights.iter().any(|(_, weight)| weight.is_some_and(|weight| !weight.device().is_cpu())) {
        return Ok(None);
    }
    let own = weights.iter().map(|(_, weight)| weight.map(ops::checksum).transpose());
    let all = world.gather("checksums", own.collect::<ops::Result<Vec<Option<u64>>>>()?)?;
    let mut hash = Sha256::new();
    for (place, (name, _)) in weights.iter().enumerate() {
        let sum = all.iter().find_map(|sums| *sums.get(place)?);
        hash.update(name);
        hash.update(sum.ok_or(Error::Bug("no rank has a weight"))?.to_le_bytes());
    }
    Ok(Some(short(&hash.finalize())))
}

/// Returns the first 64 bits of a hash.
fn short(text: &[u8]) -> u64 {
    let hash: [u8; 32] = Sha256::digest(text).into();
    u64::from_le_bytes(std::array::from_fn(|i| hash[i]))
}
