//! Frozen models that ranks may share: each keeps a shard, and a pass gathers one layer at a time.

use super::dist::{Collectives, World};
use super::model::{self, FrozenModel, PassObserver};
use super::sharding::{LocalParameter, ModelShards, PassCollectives, Sharding};
use super::{Result, ops};
use candle_core::Tensor;

/// A frozen model that ranks may share.
pub(crate) struct SharedModel {
    model: FrozenModel,
    shards: Option<ModelShards>,
}

impl SharedModel {
    /// Creates a model that each rank holds as a whole.
    pub(crate) fn new(model: FrozenModel) -> Self {
        Self { model, shards: None }
    }

    /// Shards the model under this prefix over the ranks.
    ///
    /// # Errors
    /// If a parameter can't be freed.
    pub(crate) fn divided(self, prefix: &'static str, sharding: &mut Sharding) -> Result<Self> {
        let shards = sharding.divide(prefix, self.model.weights(), &[])?;
        Ok(Self { shards: Some(shards), ..self })
    }

    /// Returns the model, some of whose parameters this rank may lack.
    pub(crate) fn model(&self) -> &FrozenModel {
        &self.model
    }

    /// Returns whether the model is sharded.
    pub(crate) fn is_divided(&self) -> bool {
        self.shards.as_ref().is_some_and(ModelShards::gathers)
    }

    /// Returns the parameters that every rank has, by name.
    pub(crate) fn named_everywhere(&self) -> Vec<(String, &Tensor)> {
        let mut all = self.model.weights().named();
        all.retain(|(_, t)| self.shards.as_ref().is_none_or(|shards| shards.is_everywhere(t)));
        all
    }

    /// Returns all parameters by name, with the tensors that this rank has.
    pub(crate) fn named_here(&self) -> Vec<LocalParameter<'_>> {
        let all = self.model.weights().named().into_iter();
        all.map(|(name, t)| self.shards.as_ref().map_or((name.clone(), Some(t)), |shards| shards.here(name, t))).collect()
    }

    /// Runs a pass for each `part`; see [`ModelShards::passes`].
    ///
    /// # Errors
    /// As [`ModelShards::passes`].
    pub(crate) fn passes<P, R>(
        &self,
        world: &World,
        parts: Vec<P>,
        mut pass: impl FnMut(&FrozenModel, Option<&dyn PassObserver>, P) -> Result<R>,
    ) -> Result<Vec<R>> {
        match &self.shards {
            Some(shards) => shards.passes(world, parts, |watch, part| pass(&self.model, watch, part)),
            None => parts.into_iter().map(|part| pass(&self.model, None, part)).collect(),
        }
    }

    /// Returns the collective operations of a pass that is part of another model's pass, if ranks share this model.
    pub(crate) fn follow<'a>(&'a self, by: &'a Collectives<'a>) -> Option<PassCollectives<'a>> {
        self.shards.as_ref().filter(|shards| shards.gathers()).map(|shards| shards.follow(by, false))
    }

    /// Frees the parameters that only other ranks keep.
    pub(crate) fn release(&self) -> ops::Result<()> {
        self.shards.as_ref().map_or(Ok(()), ModelShards::release)
    }

    /// Interpolates between this model, which must not be sharded, and another; see [`FrozenModel::mixed`].
    ///
    /// # Errors
    /// If the two have different parameters.
    pub(crate) fn mixed(&self, other: &model::Weights, alpha: f64) -> Result<Self> {
        Ok(Self::new(self.model.mixed(other, alpha)?))
    }
}
