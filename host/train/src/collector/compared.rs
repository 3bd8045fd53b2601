//! The models that a policy is compared with.

use crate::model::Frozen;
use crate::plan::ReferencePlan;

/// The models whose log-probabilities of completions are compared with the policy's.
pub(super) struct ComparedModels {
    pub reference: Option<Frozen>,
    /// What becomes of the reference model.
    pub plan: ReferencePlan,
    pub teacher: Option<Frozen>,
}
