//! A critic of its own: a value model that learns from the loss's derivatives with respect to its values, and from nothing else.

use super::training_state::{FinishedUpdate, LearningRates, PreparedUpdate, TrainingState};
use crate::Result;
use crate::dist::{Collectives, World};
use crate::model::{Gradients, ModelFolder, PassObserver, PolicyModel, ValuePass};
use crate::optim::{LearningRateSchedule, OptimizerSettings};
use crate::packed_completions::PackedCompletions;
use crate::sharding::{ModelShards, PassCollectives, Sharding};
use candle_core::Tensor;
use std::collections::HashMap;

/// Prefix of its metrics and of what errors say of it.
pub(crate) const CRITIC_PREFIX: &str = "critic_";

/// Prefix of its moments and parameters beside the policy's.
const NAMES: &str = "value_model.";

/// A value model as a run starts with it.
pub(crate) struct InitialCritic {
    pub model: PolicyModel,
    /// Its folder, unless it is a copy of the policy's model.
    pub source: Option<ModelFolder>,
    /// Whether its weights are those of the checkpoint that the run starts from, so that its moments are, too.
    pub continued: bool,
}

/// A value model that learns from the loss's derivatives with respect to its values, and from nothing else.
pub(crate) struct Critic {
    begun: InitialCritic,
    trained: TrainingState,
}

impl Critic {
    pub(crate) fn new(
        begun: InitialCritic,
        settings: OptimizerSettings,
        schedule: LearningRateSchedule,
        sharding: &mut Sharding,
    ) -> Result<Self> {
        let rates = LearningRates { schedule, of_head: None };
        let trained = TrainingState::new(CRITIC_PREFIX, &begun.model, (settings, rates), sharding)?;
        Ok(Self { begun, trained })
    }

    /// Computes the values of the states in which the selected tokens were chosen, and keeps what the backward pass needs. With a
    /// `key`, its adapter drops values, which are not those that the policy's drops.
    pub(super) fn forward<'a>(
        &'a self,
        packed: &'a PackedCompletions,
        key: Option<u64>,
        watch: Option<&'a dyn PassObserver>,
    ) -> Result<ValuePass<'a>> {
        Ok(self.model().forward_values(&packed.forest, &packed.selected.rows, key.map(|key| !key), watch)?)
    }

    /// Returns what the ranks own; see [`TrainingState::shards`].
    pub(super) fn shards(&self) -> &ModelShards {
        self.trained.shards()
    }

    /// Follows a pass; see [`TrainingState::follow`].
    pub(super) fn follow<'a>(&'a self, by: &'a Collectives<'a>, sums: bool) -> PassCollectives<'a> {
        self.trained.follow(by, sums)
    }

    /// Returns the gradients that a backward pass adds to.
    pub(super) fn gradients(&self) -> &Gradients {
        self.trained.gradients()
    }

    /// Sets the gradients to zero.
    pub(super) fn zero(&self) -> Result<()> {
        self.trained.zero()
    }

    /// Finds out whether the accumulated gradients give an update; see [`TrainingState::prepare_update`].
    pub(super) fn prepare_update(&self, step: u64, world: &World) -> Result<PreparedUpdate> {
        self.trained.prepare_update(self.model(), step, world)
    }

    /// Sets the number of times that evaluations have stopped improving.
    pub(super) fn reduce_rates(&mut self, plateaus: u32) {
        self.trained.reduce_rates(plateaus);
    }

    /// Makes a prepared update.
    pub(super) fn update(&mut self, prepared: PreparedUpdate) -> Result<FinishedUpdate> {
        self.trained.update(&self.begun.model, prepared)
    }

    /// Returns the value model.
    pub(super) fn model(&self) -> &PolicyModel {
        &self.begun.model
    }

    /// Returns the parameters with names that no parameter of the policy has.
    pub(super) fn named(&self) -> impl Iterator<Item = (String, &Tensor)> {
        self.model().weights().named().into_iter().map(|(name, t)| (format!("{NAMES}{name}"), t))
    }

    /// Returns the folder that the weights started from; see [`InitialCritic::source`].
    pub(super) fn source(&self) -> Option<ModelFolder> {
        self.begun.source.clone()
    }

    /// Returns the number of updates.
    pub(super) fn updates(&self) -> u64 {
        self.trained.updates()
    }

    /// Returns the names of the moments in [`Critic::moments`].
    pub(super) fn names_of_moments(&self) -> impl Iterator<Item = String> {
        self.trained.names_of_moments().map(|name| format!("{NAMES}{name}"))
    }

    /// Returns the number of updates, and a copy of the moments by names that none of the policy has.
    pub(super) fn moments(&self) -> Result<(u64, HashMap<String, Tensor>)> {
        let (updates, moments) = self.trained.moments()?;
        Ok((updates, moments.into_iter().map(|(name, t)| (format!("{NAMES}{name}"), t)).collect()))
    }

    /// Restores the moments among those of a checkpoint, unless the value model starts anew; the error names what does not fit.
    pub(super) fn restore(&mut self, updates: u64, all: &mut HashMap<String, Tensor>) -> std::result::Result<(), String> {
        let own = all.extract_if(|name, _| name.starts_with(NAMES));
        let own = own.map(|(name, t)| (name[NAMES.len()..].to_owned(), t)).collect();
        if !self.begun.continued {
            return Ok(());
        }
        self.trained.restore(updates, own).map_err(|e| format!("{NAMES}{e}"))
    }
}
