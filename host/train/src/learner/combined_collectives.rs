//! Collective operations of a pass through the policy, the critic and the teacher.

use crate::model::{self, PassDirection};
use crate::sharding::PassCollectives;

/// Collective operations of a pass through the policy, the critic and the teacher, in the order of their passes.
pub(super) struct CombinedCollectives<'a> {
    pub policy: PassCollectives<'a>,
    pub teacher: Option<PassCollectives<'a>>,
    pub critic: Option<PassCollectives<'a>>,
}

impl CombinedCollectives<'_> {
    /// Completes the remaining operations of a direction; see [`PassCollectives::finish`]. A teacher has no backward pass.
    pub(super) fn finish(&self, direction: PassDirection) -> model::Result<()> {
        let teacher = self.teacher.as_ref().filter(|_| direction == PassDirection::Forward);
        [Some(&self.policy), teacher, self.critic.as_ref()].into_iter().flatten().try_for_each(|each| each.finish(direction))
    }
}
