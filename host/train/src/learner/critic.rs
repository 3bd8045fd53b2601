//! A separate critic: a value model that learns only from the loss's derivatives with respect to its values.

use super::training_state::{FinishedUpdate, LearningRates, PreparedUpdate, TrainingState};
use crate::Result;
use crate::dist::{Collectives, World};
use crate::model::{Gradients, ModelFolder, PassObserver, PolicyModel, ValuePass};
use crate::optim::{LearningRateSchedule, OptimizerSettings};
use crate::packed_completions::PackedCompletions;
use crate::sharding::{ModelShards, PassCollectives, Sharding};
use candle_core::Tensor;
use std::collections::HashMap;

/// Prefix of the critic's metrics and errors.
pub(crate) const CRITIC_PREFIX: &str = "critic_";

/// Prefix of the critic's moments and parameters, next to those of the policy.
const NAMES: &str = "value_model.";

/// A value model as it is when the run starts.
pub(crate) struct InitialCritic {
    pub model: PolicyModel,
    /// Folder of the value model, unless it is a copy of the policy's model.
    pub source: Option<ModelFolder>,
    /// Whether the weights come from the checkpoint that the run starts from, and so do the moments.
    pub continued: bool,
}

/// A value model that learns only from the loss's derivatives with respect to its values.
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

    /// Computes the values of the states in which the selected tokens were chosen, and keeps what the backward pass needs. With a `key`,
    /// the adapter applies dropout, independent of the policy's.
    pub(super) fn forward<'a>(
        &'a self,
        packed: &'a PackedCompletions,
        key: Option<u64>,
        watch: Option<&'a dyn PassObserver>,
    ) -> Result<ValuePass<'a>> {
        Ok(self.model().forward_values(&packed.forest, &packed.selected.rows, key.map(|key| !key), watch)?)
    }

    /// Returns the shards of the critic; see [`TrainingState::shards`].
    pub(super) fn shards(&self) -> &ModelShards {
        self.trained.shards()
    }

    /// Returns the collective operations of a pass; see [`TrainingState::follow`].
    pub(super) fn follow<'a>(&'a self, by: &'a Collectives<'a>, sums: bool) -> PassCollectives<'a> {
        self.trained.follow(by, sums)
    }

    /// Returns the gradients that a backward pass accumulates.
    pub(super) fn gradients(&self) -> &Gradients {
        self.trained.gradients()
    }

    /// Sets the gradients to zero.
    pub(super) fn zero(&self) -> Result<()> {
        self.trained.zero()
    }

    /// Determines whether the accumulated gradients yield an update; see [`TrainingState::prepare_update`].
    pub(super) fn prepare_update(&self, step: u64, world: &World) -> Result<PreparedUpdate> {
        self.trained.prepare_update(self.model(), step, world)
    }

    /// Sets the number of times that evaluations have stopped improving.
    pub(super) fn reduce_rates(&mut self, plateaus: u32) {
        self.trained.reduce_rates(plateaus);
    }

    /// Applies a prepared update.
    pub(super) fn update(&mut self, prepared: PreparedUpdate) -> Result<FinishedUpdate> {
        self.trained.update(&self.begun.model, prepared)
    }

    /// Returns the value model.
    pub(super) fn model(&self) -> &PolicyModel {
        &self.begun.model
    }

    /// Returns the parameters under names that the policy does not use.
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

    /// Returns the number of updates, and a copy of the moments under names that the policy does not use.
    pub(super) fn moments(&self) -> Result<(u64, HashMap<String, Tensor>)> {
        let (updates, moments) = self.trained.moments()?;
        Ok((updates, moments.into_iter().map(|(name, t)| (format!("{NAMES}{name}"), t)).collect()))
    }

    /// Restores the moments from those of a checkpoint, unless the value model starts fresh.
    ///
    /// # Errors
    /// What does not fit.
    pub(super) fn restore(&mut self, updates: u64, all: &mut HashMap<String, Tensor>) -> std::result::Result<(), String> {
        let own = all.extract_if(|name, _| name.starts_with(NAMES));
        let own = own.map(|(name, t)| (name[NAMES.len()..].to_owned(), t)).collect();
        if !self.begun.continued {
            return Ok(());
        }
        self.trained.restore(updates, own).map_err(|e| format!("{NAMES}{e}"))
    }
}
