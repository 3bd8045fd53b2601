//! Frozen models that the ranks may share: each keeps a part, and a pass gathers a layer at a time.

use super::dist::{Collectives, World};
use super::model::{self, FrozenModel, PassObserver};
use super::sharding::{LocalParameter, ModelShards, PassCollectives, Sharding};
use super::{Result, ops};
use candle_core::Tensor;

/// A frozen model, which ranks may share.
pub(crate) struct SharedModel {
    model: FrozenModel,
    shards: Option<ModelShards>,
}

impl SharedModel {
    /// Creates a model that each rank has whole.
    pub(crate) fn new(model: FrozenModel) -> Self {
        Self { model, shards: None }
    }

    /// Divides the model under this prefix: ranks keep parts of it from then on.
    ///
    /// # Errors
    /// If a parameter can't be freed.
    pub(crate) fn divided(self, prefix: &'static str, sharding: &mut Sharding) -> Result<Self> {
        let shards = sharding.divide(prefix, self.model.weights(), &[])?;
        Ok(Self { shards: Some(shards), ..self })
    }

    /// Returns the model, whose parameters this rank may not have.
    pub(crate) fn model(&self) -> &FrozenModel {
        &self.model
    }

    /// Returns whether ranks have different parts of it.
    pub(crate) fn is_divided(&self) -> bool {
        self.shards.as_ref().is_some_and(ModelShards::gathers)
    }

    /// Returns the parameters that each rank has, by name.
    pub(crate) fn named_everywhere(&self) -> Vec<(String, &Tensor)> {
        let mut all = self.model.weights().named();
        all.retain(|(_, t)| self.shards.as_ref().is_none_or(|shards| shards.is_everywhere(t)));
        all
    }

    /// Returns all parameters by name, with those that this rank has.
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

    /// Follows a pass that other models' passes belong to, if ranks share this one.
    pub(crate) fn follow<'a>(&'a self, by: &'a Collectives<'a>) -> Option<PassCollectives<'a>> {
        self.shards.as_ref().filter(|shards| shards.gathers()).map(|shards| shards.follow(by, false))
    }

    /// Frees the parameters that only other ranks keep.
    pub(crate) fn release(&self) -> ops::Result<()> {
        self.shards.as_ref().map_or(Ok(()), ModelShards::release)
    }

    /// Interpolates between this model, which each rank has whole, and another; see [`FrozenModel::mixed`].
    ///
    /// # Errors
    /// If the two have different parameters.
    pub(crate) fn mixed(&self, other: &model::Weights, alpha: f64) -> Result<Self> {
        Ok(Self::new(self.model.mixed(other, alpha)?))
    }
}
