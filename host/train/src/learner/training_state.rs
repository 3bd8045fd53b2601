//! Training state of a model: gradients, an optimizer and a schedule.

use crate::dist::{Collectives, World};
use crate::metrics::{Metric, MetricReduction};
use crate::model::{Gradients, PolicyModel, is_critic_parameter};
use crate::ops;
use crate::ops::adamw::Parameter;
use crate::optim::{FiniteUpdate, LearningRateSchedule, Optimizer, OptimizerSettings, UpdatePreparation};
use crate::sharding::{ModelShards, PassCollectives, Sharding};
use crate::{Error, Result};
use candle_core::Tensor;
use std::collections::HashMap;

/// Learning rates of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LearningRates {
    pub schedule: LearningRateSchedule,
    /// Learning rate of a critic's head on the policy, if it has its own.
    pub of_head: Option<LearningRateSchedule>,
}

impl LearningRates {
    /// Returns each parameter's learning rate in the update after `step` completed ones.
    fn at(self, step: u64) -> impl Fn(&str) -> f64 {
        let (rate, of_head) = (self.schedule.at(step), self.of_head.map(|schedule| schedule.at(step)));
        move |name: &str| of_head.filter(|_| is_critic_parameter(name)).unwrap_or(rate)
    }
}

/// Training state of a model: gradients, an optimizer and a schedule. Every call gets the model that was passed to [`TrainingState::new`].
pub(super) struct TrainingState {
    /// Prefix of the model's errors and metrics.
    prefix: &'static str,
    gradients: Gradients,
    /// Optimizer of the parameters that this rank owns.
    optimizer: Optimizer,
    rates: LearningRates,
    shards: ModelShards,
}

/// An update that is ready to be applied.
pub(super) struct PreparedUpdate {
    /// Number of updates before this one.
    step: u64,
    ready: FiniteUpdate,
}

/// A finished update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedUpdate {
    prefix: &'static str,
    /// Norm of the gradient before clipping.
    grad_norm: f64,
    learning_rate: f64,
    /// Learning rate of a critic's head on the policy, if it has its own.
    rate_of_head: Option<f64>,
}

impl FinishedUpdate {
    /// Returns whether the update changed weights.
    pub(crate) fn moves(&self) -> bool {
        self.grad_norm > 0.0 && self.learning_rate > 0.0
    }

    /// Returns the metrics of the update. Over a window, the last step counts, as in transformers.
    pub(crate) fn metrics(self) -> impl Iterator<Item = Metric> {
        let named = [("grad_norm", self.grad_norm), ("learning_rate", self.learning_rate)];
        let named = named.map(|(name, value)| (format!("{}{name}", self.prefix), value)).into_iter();
        let all = named.chain(self.rate_of_head.map(|rate| ("critic_learning_rate".to_owned(), rate)));
        all.map(|(name, value)| Metric::new(name, value, MetricReduction::Last))
    }
}

/// Returns the parameters that this rank updates.
fn own<'a>(model: &'a PolicyModel, gradients: &'a Gradients, shards: &ModelShards) -> Vec<Parameter<'a>> {
    let mut all = model.parameters(gradients);
    all.retain(|p| shards.owns(&p.name));
    all
}

impl TrainingState {
    pub(super) fn new(
        prefix: &'static str,
        model: &PolicyModel,
        (settings, rates): (OptimizerSettings, LearningRates),
        sharding: &mut Sharding,
    ) -> Result<Self> {
        let (weights, gradients) = (model.weights(), model.zero_gradients()?);
        let shards = sharding.divide(prefix, weights, &gradients.named())?;
        let own: Vec<_> = weights.trained().into_iter().filter(|(name, _)| shards.owns(name)).collect();
        Ok(Self { prefix, gradients, optimizer: Optimizer::new(settings, &own)?, rates, shards })
    }

    /// Returns the shards of the model.
    pub(super) fn shards(&self) -> &ModelShards {
        &self.shards
    }

    /// Returns the collective operations of a pass. They sum the gradients if `sums`, or if every pass does.
    pub(super) fn follow<'a>(&'a self, by: &'a Collectives<'a>, sums: bool) -> PassCollectives<'a> {
        self.shards.follow(by, sums)
    }

    /// Returns the gradients that a backward pass accumulates.
    pub(super) fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    /// Sets the gradients to zero.
    pub(super) fn zero(&self) -> Result<()> {
        // A failed step may have left some.
        self.shards.free_gradients()?;
        let kept = |name: &str| !self.shards.sums_each_pass() || self.shards.owns(name);
        let all = self.gradients.named().into_iter().filter(|(name, _)| kept(name));
        all.into_iter().try_for_each(|(_, gradient)| Ok(ops::fill_zero(gradient)?))
    }

    /// Determines whether the accumulated gradients yield an update, after `step` previous ones, without changing anything. If each rank
    /// updates a part, all reach the same result.
    ///
    /// # Errors
    /// If the gradient or the weights would not be finite, or a rank has failed.
    pub(super) fn prepare_update(&self, model: &PolicyModel, step: u64, world: &World) -> Result<PreparedUpdate> {
        let (prefix, parameters) = (self.prefix, own(model, &self.gradients, &self.shards));
        let mut squares = ops::sum_of_squares(parameters.iter().map(|p| p.gradient))?;
        if self.shards.is_divided() {
            squares = world.sum("the gradient's norm", squares)?;
        }
        let prepared = self.optimizer.prepare(&parameters, self.rates.at(step), squares)?;
        let mut overflow = match &prepared {
            UpdatePreparation::Overflow(parameter) => Some(parameter.clone()),
            UpdatePreparation::Ready(_) | UpdatePreparation::NotFinite(_) => None,
        };
        if self.shards.is_divided() {
            overflow = world.gather("an update", overflow)?.into_iter().flatten().next();
        }
        if let Some(parameter) = overflow {
            let lr = self.rates.at(step)(&parameter);
            return Err(Error::Overflow { step: step + 1, parameter, lr, prefix });
        }
        match prepared {
            UpdatePreparation::Ready(ready) => Ok(PreparedUpdate { step, ready }),
            UpdatePreparation::NotFinite(norm) => Err(Error::NotFinite { step: step + 1, norm, prefix }),
            UpdatePreparation::Overflow(_) => Err(Error::Bug("an update that overflows was forgotten")),
        }
    }

    /// Sets the number of times that evaluations have stopped improving.
    pub(super) fn reduce_rates(&mut self, plateaus: u32) {
        self.rates.schedule.plateaus = plateaus;
        self.rates.of_head.iter_mut().for_each(|schedule| schedule.plateaus = plateaus);
    }

    /// Applies a prepared update to the parameters that this rank owns.
    pub(super) fn update(
        &mut self,
        model: &PolicyModel,
        PreparedUpdate { step, ready }: PreparedUpdate,
    ) -> Result<FinishedUpdate> {
        let grad_norm = ready.norm;
        self.optimizer.apply(&own(model, &self.gradients, &self.shards), self.rates.at(step), ready)?;
        let (learning_rate, of_head) = (self.rates.schedule.at(step), self.rates.of_head.map(|schedule| schedule.at(step)));
        Ok(FinishedUpdate { prefix: self.prefix, grad_norm, learning_rate, rate_of_head: of_head })
    }

    /// Returns the number of updates.
    pub(super) fn updates(&self) -> u64 {
        self.optimizer.updates()
    }

    /// Returns the names of the moments in [`TrainingState::moments`].
    pub(super) fn names_of_moments(&self) -> impl Iterator<Item = String> {
        self.optimizer.names()
    }

    /// Returns the number of updates, and a copy of the moments of this rank's parameters by name.
    pub(super) fn moments(&self) -> Result<(u64, HashMap<String, Tensor>)> {
        Ok(self.optimizer.state()?)
    }

    /// Restores the optimizer's state.
    ///
    /// # Errors
    /// What does not fit.
    pub(super) fn restore(&mut self, updates: u64, moments: HashMap<String, Tensor>) -> std::result::Result<(), String> {
        self.optimizer.restore(updates, moments)
    }
}
