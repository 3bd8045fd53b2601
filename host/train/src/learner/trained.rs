//! What training adds to a model: gradients, an optimizer and a schedule.

use crate::metrics::{Metric, Reduction};
use crate::model::{Gradients, Policy, of_critic};
use crate::ops;
use crate::optim::{Optimizer, Prepared, Ready, Schedule, Settings};
use crate::{Error, Result};
use candle_core::Tensor;
use std::collections::HashMap;

/// The learning rates of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub schedule: Schedule,
    /// That of a critic's head on the policy, if it has one of its own.
    pub of_head: Option<Schedule>,
}

impl Rates {
    /// Returns each parameter's rate in the update after `step` finished ones.
    fn at(self, step: u64) -> impl Fn(&str) -> f64 {
        let (rate, of_head) = (self.schedule.at(step), self.of_head.map(|schedule| schedule.at(step)));
        move |name: &str| of_head.filter(|_| of_critic(name)).unwrap_or(rate)
    }
}

/// What training adds to a model: gradients, an optimizer and a schedule. Every call gets the model that [`Trained::new`] got.
pub(super) struct Trained {
    /// What its errors and metrics begin with.
    prefix: &'static str,
    gradients: Gradients,
    optimizer: Optimizer,
    rates: Rates,
}

/// An update that can be made.
pub(super) struct PreparedUpdate {
    /// Number of updates before it.
    step: u64,
    ready: Ready,
}

/// A finished update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Updated {
    prefix: &'static str,
    /// The gradient's norm before clipping.
    grad_norm: f64,
    learning_rate: f64,
    /// That of a critic's head on the policy, if it has one of its own.
    rate_of_head: Option<f64>,
}

impl Updated {
    /// Returns whether it changed weights.
    pub(crate) fn moves(&self) -> bool {
        self.grad_norm > 0.0 && self.learning_rate > 0.0
    }

    /// Returns its metrics: of the window's last step, as transformers logs them.
    pub(crate) fn metrics(self) -> impl Iterator<Item = Metric> {
        let named = [("grad_norm", self.grad_norm), ("learning_rate", self.learning_rate)];
        let named = named.map(|(name, value)| (format!("{}{name}", self.prefix), value)).into_iter();
        let all = named.chain(self.rate_of_head.map(|rate| ("critic_learning_rate".to_owned(), rate)));
        all.map(|(name, value)| Metric::new(name, value, Reduction::Last))
    }
}

impl Trained {
    pub(super) fn new(prefix: &'static str, model: &Policy, settings: Settings, rates: Rates) -> Result<Self> {
        let optimizer = Optimizer::new(settings, &model.weights().trained())?;
        Ok(Self { prefix, gradients: model.zero_gradients()?, optimizer, rates })
    }

    /// Returns the gradients that a backward pass adds to.
    pub(super) fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    /// Sets the gradients to zero.
    pub(super) fn zero(&self) -> Result<()> {
        self.gradients.named().into_iter().try_for_each(|(_, gradient)| Ok(ops::fill_zero(gradient)?))
    }

    /// Finds out whether the accumulated gradients give an update, after this many; changes nothing.
    ///
    /// # Errors
    /// If the gradient or the weights would not be finite.
    pub(super) fn prepare_update(&self, model: &Policy, step: u64) -> Result<PreparedUpdate> {
        let prefix = self.prefix;
        match self.optimizer.prepare(&model.parameters(&self.gradients), self.rates.at(step))? {
            Prepared::Ready(ready) => Ok(PreparedUpdate { step, ready }),
            Prepared::NotFinite(norm) => Err(Error::NotFinite { step: step + 1, norm, prefix }),
            Prepared::Overflow(parameter) => {
                let lr = self.rates.at(step)(&parameter);
                Err(Error::Overflow { step: step + 1, parameter, lr, prefix })
            }
        }
    }

    /// Sets the number of times that evaluations have stopped improving.
    pub(super) fn reduce_rates(&mut self, plateaus: u32) {
        self.rates.schedule.plateaus = plateaus;
        self.rates.of_head.iter_mut().for_each(|schedule| schedule.plateaus = plateaus);
    }

    /// Makes a prepared update.
    pub(super) fn update(&mut self, model: &Policy, PreparedUpdate { step, ready }: PreparedUpdate) -> Result<Updated> {
        let grad_norm = ready.norm;
        self.optimizer.make(&model.parameters(&self.gradients), self.rates.at(step), ready)?;
        let (learning_rate, of_head) = (self.rates.schedule.at(step), self.rates.of_head.map(|schedule| schedule.at(step)));
        Ok(Updated { prefix: self.prefix, grad_norm, learning_rate, rate_of_head: of_head })
    }

    /// Returns the number of updates and a copy of the optimizer's moments by name.
    pub(super) fn moments(&self) -> Result<(u64, HashMap<String, Tensor>)> {
        Ok(self.optimizer.state()?)
    }

    /// Restores the optimizer's state; the error names what does not fit.
    pub(super) fn restore(&mut self, updates: u64, moments: HashMap<String, Tensor>) -> std::result::Result<(), String> {
        self.optimizer.restore(updates, moments)
    }
}
