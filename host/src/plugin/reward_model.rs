//! Losses of reward models: computed from one value per completion, with their derivatives.

use super::adapters::reward_model;
use super::engine::Engine;
use super::instance::Plugin;
use super::loaded::Call;
use super::policy::Check;
use super::sandbox::Sandbox;
use super::world::Role;
use super::{Metric, Result, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::ops::{Deref, DerefMut};
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

pub use super::adapters::reward_model::Pairs as ValuedPairs;

/// A micro-batch of pairs' part of the loss and its derivatives, per pair.
#[derive(Clone, Debug, Default)]
pub struct ValueGradient {
    /// This micro-batch's part of the step's loss.
    pub loss: f64,
    /// With respect to the values of the chosen completions.
    pub d_chosen: Vec<f32>,
    /// With respect to those of the rejected completions.
    pub d_rejected: Vec<f32>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// A loaded loss of reward models.
pub struct RewardModelPlugin {
    plugin: Plugin,
}

impl Deref for RewardModelPlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for RewardModelPlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl RewardModelPlugin {
    /// Loads and configures a plugin; `seed` is the run's.
    pub fn load(engine: &Engine, source: &Source, config: &Map<String, Value>, limits: &Limits, seed: u64) -> Result<Self> {
        Ok(Self { plugin: Plugin::load(engine, source, Role::RewardModel, config, limits, seed)? })
    }

    /// Returns one micro-batch's part of the loss.
    pub fn loss(&mut self, pairs: &ValuedPairs) -> Result<ValueGradient> {
        let at = Call::at("loss", pairs.step);
        let loaded = self.plugin.shared();
        let loss = |store: &mut Store<Sandbox>, linked: &Linked| loaded.exports.old()?.call_reward_model(store, linked, pairs);
        let given: reward_model::Gradient = self.plugin.call(at, loss)?;
        let check = Check { name: self.name(), function: "loss", step: pairs.step, tokens: pairs.chosen.len() };
        check.loss(given.loss)?;
        for (what, column) in [("d_chosen", &given.d_chosen), ("d_rejected", &given.d_rejected)] {
            check.values(what, "pair", column)?;
        }
        let metrics = self.plugin.checked_metrics(Role::RewardModel, given.metrics).map_err(|e| check.wrong(e))?;
        let same = |again: reward_model::Gradient| {
            let columns = again.d_chosen == given.d_chosen && again.d_rejected == given.d_rejected;
            again.loss.to_bits() == given.loss.to_bits() && columns
        };
        if !self.plugin.answer_again(at, false, loss).is_none_or(same) {
            return Err(self.plugin.not_stateless(at, "the loss differs"));
        }
        Ok(ValueGradient { loss: given.loss, d_chosen: given.d_chosen, d_rejected: given.d_rejected, metrics })
    }
}
