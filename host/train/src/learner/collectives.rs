//! Collective operations of a step, during and around its passes.

use super::combined_collectives::CombinedCollectives;
use super::{Critic, GradientAction, Learner};
use crate::dist::{Collectives, ReductionSettings};
use crate::model::PolicyModel;
use crate::sharding::ModelShards;
use crate::{Error, Result};
use candle_core::Tensor;
use std::collections::{HashMap, HashSet};

/// Keeps all parameters of the policy on all ranks until it is dropped.
#[must_use]
pub(crate) struct GatheredPolicy<'a>(&'a Learner);

impl Drop for GatheredPolicy<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.release() {
            tracing::debug!("parameters are not freed: {error}");
        }
    }
}

impl Learner {
    /// Returns the number of passes on this rank, which has `own` micro-batches: the maximum over all ranks, if each pass communicates.
    pub(super) fn passes(&self, own: usize) -> Result<usize> {
        if !self.trained.shards().sums_each_pass() && !self.gathers() {
            // The last pass sums gradients, even on a rank without micro-batches.
            return Ok(own.max(1));
        }
        Ok(self.world.gather("passes", own)?.into_iter().max().unwrap_or_default().max(1))
    }

    /// Returns whether a pass sums the ranks' gradients.
    pub(super) fn sums(&self, learn: GradientAction) -> bool {
        let sums = learn == GradientAction::AddAndSum || self.trained.shards().sums_each_pass();
        sums && learn != GradientAction::Nothing && self.world.size() > 1
    }

    /// Runs a training pass with its collective operations.
    pub(super) fn communicating<T>(
        &self,
        learn: GradientAction,
        pass: impl FnOnce(&CombinedCollectives<'_>) -> Result<T>,
    ) -> Result<T> {
        if self.gathers() {
            self.world.barrier("a pass")?;
        }
        let sums = learn == GradientAction::AddAndSum;
        let done = self.world.communicate("gradients", self.reduction(), |by| {
            let critic = self.critic.as_ref().map(|critic| critic.follow(by, sums));
            let teacher = self.teacher.as_ref().and_then(|teacher| teacher.follow(by));
            pass(&CombinedCollectives { policy: self.trained.follow(by, sums), teacher, critic })
        });
        // Parameters outside of layers are still gathered.
        self.release()?;
        done?
    }

    /// Returns whether passes gather parameters.
    fn gathers(&self) -> bool {
        let teacher = self.teacher.as_ref().is_some_and(|teacher| teacher.is_divided());
        teacher || self.models_with_shards().any(|(_, shards)| shards.gathers())
    }

    /// Returns the moments of a checkpoint, without those of any model for which a rank lacks some: an optimizer starts fresh on all ranks
    /// or on none.
    ///
    /// # Errors
    /// If a rank has failed.
    pub(crate) fn agreed_moments(&self, mut moments: HashMap<String, Tensor>) -> Result<HashMap<String, Tensor>> {
        if !self.is_divided() {
            return Ok(moments);
        }
        let of_critic: HashSet<String> = self.critic.iter().flat_map(Critic::names_of_moments).collect();
        let lacks = |critic: bool| {
            let mut own = self.moments().into_iter().filter(|name| of_critic.contains(name) == critic);
            own.any(|name| !moments.contains_key(&name))
        };
        let all = self.world.gather("moments", [lacks(false), lacks(true)])?;
        let [policy, critic] = [0, 1].map(|model| all.iter().any(|lacks| lacks[model]));
        moments.retain(|name, _| if of_critic.contains(name) { !critic } else { !policy });
        Ok(moments)
    }

    /// Returns how ranks exchange gradients.
    fn reduction(&self) -> ReductionSettings {
        ReductionSettings { dtype: self.plan.reduce_dtype, overlap: self.plan.overlaps_reduction }
    }

    /// Sends the weights that each rank has updated to all.
    pub(super) fn publish(&self) -> Result<()> {
        if !self.is_divided() {
            return Ok(());
        }
        self.world.barrier("updated weights")?;
        let all = self.models_with_shards().map(|(_, shards)| shards).collect::<Vec<_>>();
        let publish = |by: &Collectives<'_>| all.into_iter().for_each(|shards| shards.publish(by));
        Ok(self.world.communicate("updated weights", self.reduction(), publish)?)
    }

    /// Gathers all parameters of the policy on all ranks, if they are sharded. All ranks must call this.
    ///
    /// # Errors
    /// If a rank has failed.
    pub(crate) fn gather_policy(&self) -> Result<GatheredPolicy<'_>> {
        let shards = self.trained.shards();
        if shards.gathers() {
            self.world.barrier("parameters")?;
            self.world.communicate("parameters", self.reduction(), |by| shards.gather(by))?;
        }
        Ok(GatheredPolicy(self))
    }

    /// Frees the parameters that only other ranks keep.
    pub(super) fn release(&self) -> Result<()> {
        let teacher = self.teacher.iter().map(|teacher| teacher.release());
        let models = self.models_with_shards().map(|(_, shards)| shards.release());
        models.chain(teacher).try_for_each(|released| released.map_err(Error::from))
    }

    /// Returns the trained models with their shards.
    pub(super) fn models_with_shards(&self) -> impl Iterator<Item = (&PolicyModel, &ModelShards)> {
        std::iter::once((&self.policy, self.trained.shards()))
            .chain(self.critic.as_ref().map(|critic| (critic.model(), critic.shards())))
    }
}
