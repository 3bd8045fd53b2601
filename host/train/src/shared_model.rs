//! Frozen models that the ranks may share: each keeps a part, and a pass gathers a layer at a time.

use super::dist::{Collectives, Reduction, World};
use super::model::{self, Direction, Frozen, Watch};
use super::sharding::{Following, Shards, TensorHere};
use super::{Error, Result, ops};
use crate::config::ReduceDtype;
use candle_core::Tensor;

/// A frozen model, which ranks may share.
pub(crate) struct SharedModel {
    model: Frozen,
    shards: Option<Shards>,
    /// Whether its parameters are those of the policy that are not trained.
    is_of_policy: bool,
}

impl SharedModel {
    /// Creates a model that each rank has whole, or that they share.
    pub(crate) fn new(model: Frozen, shards: Option<Shards>) -> Self {
        Self { model, shards, is_of_policy: false }
    }

    /// Creates a view of the policy without its adapter: its parameters are where the policy's are.
    pub(crate) fn of_policy(model: Frozen) -> Self {
        Self { model, shards: None, is_of_policy: true }
    }

    /// Returns whether its parameters are those of the policy that are not trained.
    pub(crate) fn is_of_policy(&self) -> bool {
        self.is_of_policy
    }

    /// Returns the model, whose parameters this rank may not have.
    pub(crate) fn model(&self) -> &Frozen {
        &self.model
    }

    /// Returns whether ranks have different parts of it.
    pub(crate) fn is_divided(&self) -> bool {
        self.shards.as_ref().is_some_and(Shards::gathers)
    }

    /// Returns the parameters that each rank has, by name.
    pub(crate) fn named_everywhere(&self) -> Vec<(String, &Tensor)> {
        let mut all = self.model.weights().named();
        all.retain(|(_, t)| self.shards.as_ref().is_none_or(|shards| shards.is_everywhere(t)));
        all
    }

    /// Returns all parameters by name, with those that this rank has.
    pub(crate) fn named_here(&self) -> Vec<TensorHere<'_>> {
        let all = self.model.weights().named().into_iter();
        all.map(|(name, t)| self.shards.as_ref().map_or((name.clone(), Some(t)), |shards| shards.here(name, t))).collect()
    }

    /// Runs a pass of each `part` that this rank has, and returns their results. If ranks share the model, all must call this, and a rank
    /// with fewer parts takes part in the passes of the others.
    ///
    /// # Errors
    /// If a pass fails, or a rank has failed.
    pub(crate) fn passes<P, R>(
        &self,
        world: &World,
        parts: Vec<P>,
        mut pass: impl FnMut(&Frozen, Option<&dyn Watch>, P) -> Result<R>,
    ) -> Result<Vec<R>> {
        let Some(shards) = self.shards.as_ref().filter(|shards| shards.gathers()) else {
            return parts.into_iter().map(|part| pass(&self.model, None, part)).collect();
        };
        let count = world.gather("passes of a frozen model", parts.len())?.into_iter().max().unwrap_or_default();
        let (mut parts, mut results) = (parts.into_iter(), Vec::new());
        for _ in 0..count {
            world.barrier("a pass of a frozen model")?;
            let done = world.communicate("parameters", REDUCTION, |by| {
                let following = shards.follow(by, false);
                let result = parts.next().map(|part| pass(&self.model, Some(&following), part)).transpose();
                following.finish(Direction::Forward).map_err(Error::from).and(result)
            });
            // What is in no layer has stayed.
            self.release()?;
            results.extend(done??);
        }
        Ok(results)
    }

    /// Follows a pass that other models' passes belong to, if ranks share this one.
    pub(crate) fn follow<'a>(&'a self, by: &'a Collectives<'a>) -> Option<Following<'a>> {
        self.shards.as_ref().filter(|shards| shards.gathers()).map(|shards| shards.follow(by, false))
    }

    /// Frees the parameters that only other ranks keep.
    pub(crate) fn release(&self) -> ops::Result<()> {
        self.shards.as_ref().map_or(Ok(()), Shards::release)
    }

    /// Interpolates between this model, which each rank has whole, and another; see [`Frozen::mixed`].
    ///
    /// # Errors
    /// If the two have different parameters.
    pub(crate) fn mixed(&self, other: &model::Weights, alpha: f64) -> Result<Self> {
        Ok(Self { model: self.model.mixed(other, alpha)?, shards: None, is_of_policy: false })
    }
}

/// Nothing is summed where parameters are gathered.
const REDUCTION: Reduction = Reduction { dtype: ReduceDtype::Float32, beside: true };
