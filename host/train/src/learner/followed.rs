//! A pass through the policy and the models beside it, followed by what divides them.

use crate::model::{self, Direction};
use crate::sharding::Following;

/// Follows a pass through the policy and the models beside it, in the order of their passes.
pub(super) struct Watching<'a> {
    pub policy: Following<'a>,
    pub teacher: Option<Following<'a>>,
    pub critic: Option<Following<'a>>,
}

impl Watching<'_> {
    /// Does what is left of a direction; see [`Following::finish`]. A teacher has no backward pass.
    pub(super) fn finish(&self, direction: Direction) -> model::Result<()> {
        let teacher = self.teacher.as_ref().filter(|_| direction == Direction::Forward);
        [Some(&self.policy), teacher, self.critic.as_ref()].into_iter().flatten().try_for_each(|each| each.finish(direction))
    }
}
