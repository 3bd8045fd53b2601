//! Policy plugins: compute advantages from a generation's rewards, and a loss with its derivatives.

use super::adapters::policy;
use super::asked;
use super::columns;
use super::engine::Engine;
use super::figures::LARGEST;
use super::instance::Plugin;
use super::loaded::Call;
use super::sandbox::Sandbox;
use super::world::Role;
use super::{Error, Metric, Result, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::ops::{Deref, DerefMut};
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

pub use super::adapters::policy::Tokens;
pub use super::adapters::turn_policy::Turns;
pub use super::adapters::types::{RewardColumn, Rollouts, Scale};

/// A generation batch as algorithms see it.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The completions of all ranks.
    pub rollouts: Rollouts,
    /// Their turns, if they are episodes.
    pub turns: Option<Turns>,
}

impl From<Rollouts> for Generation {
    fn from(rollouts: Rollouts) -> Self {
        Self { rollouts, turns: None }
    }
}

/// An algorithm's result for a generation batch, per token.
#[derive(Clone, Debug, Default)]
pub struct Advantages {
    /// Advantages.
    pub advantages: Vec<f32>,
    /// Targets for the critic.
    pub returns: Option<Vec<f32>>,
    /// 1 for tokens that count; the input's mask if the plugin returns none.
    pub mask: Vec<u8>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// A micro-batch's part of the loss and its derivatives, per token.
#[derive(Clone, Debug, Default)]
pub struct Gradient {
    /// This micro-batch's part of the step's loss.
    pub loss: f64,
    /// With respect to the log-probabilities.
    pub d_logp: Vec<f32>,
    /// With respect to the entropies.
    pub d_entropy: Option<Vec<f32>>,
    /// With respect to the critic's values.
    pub d_values: Option<Vec<f32>>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// A loaded algorithm.
pub struct PolicyPlugin {
    plugin: Plugin,
}

impl Deref for PolicyPlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for PolicyPlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl PolicyPlugin {
    /// Loads and configures a plugin; `seed` is the run's.
    pub fn load(engine: &Engine, source: &Source, config: &Map<String, Value>, limits: &Limits, seed: u64) -> Result<Self> {
        Ok(Self { plugin: Plugin::load(engine, source, Role::Policy, config, limits, seed)? })
    }

    /// Returns the advantages of a whole generation batch. Sends only the columns that the plugin asks for.
    pub fn estimate(&mut self, generation: &Generation) -> Result<Advantages> {
        let rollouts = &*asked::rollouts(&generation.rollouts, &self.info().needs);
        let (turns, at) = (self.turns(generation)?, Call::at("estimate", rollouts.step));
        let loaded = self.plugin.shared();
        let estimate =
            |store: &mut Store<Sandbox>, linked: &Linked| loaded.exports.old()?.call_estimate(store, linked, rollouts, turns);
        let given: policy::Advantages = self.plugin.call(at, estimate)?;
        let check = Check { name: self.name(), function: "estimate", step: rollouts.step, tokens: rollouts.mask.len() };
        check.column("advantages", &given.advantages)?;
        if let Some(returns) = &given.returns {
            check.column("returns", returns)?;
        }
        let mask = given.mask.clone().unwrap_or_else(|| rollouts.mask.clone());
        if mask.len() != check.tokens || mask.iter().any(|&m| m > 1) {
            return Err(check.wrong(format!(
                "returned a mask of {} entries for {} tokens, or with entries other than 0 and 1",
                mask.len(),
                check.tokens
            )));
        }
        if let Some(at) = mask.iter().zip(&rollouts.mask).position(|(given, own)| given > own) {
            return Err(check.wrong(format!("returned mask 1 for token {at}, whose mask is 0: it was not sampled")));
        }
        let metrics = self.plugin.checked_metrics(Role::Policy, given.metrics).map_err(|e| check.wrong(e))?;
        let same = |again: policy::Advantages| {
            again.advantages == given.advantages && again.returns == given.returns && again.mask == given.mask
        };
        if !self.plugin.answer_again(at, false, estimate).is_none_or(same) {
            return Err(self.plugin.not_stateless(at, "the advantages differ"));
        }
        Ok(Advantages { advantages: given.advantages, returns: given.returns, mask, metrics })
    }

    /// Returns the turns of a generation, if the plugin asks for them.
    fn turns<'a>(&self, generation: &'a Generation) -> Result<Option<&'a Turns>> {
        if !self.info().needs.has(columns::TURN_REWARD) {
            return Ok(None);
        }
        let missing = || Error::Config {
            name: self.name().to_owned(),
            detail: "its settings ask for the rewards of turns, which only episodes have; set environment".to_owned(),
        };
        generation.turns.as_ref().ok_or_else(missing).map(Some)
    }

    /// Returns one micro-batch's part of the loss. Sends only the columns that the plugin asks for.
    pub fn loss(&mut self, tokens: &Tokens) -> Result<Gradient> {
        let tokens = &*asked::tokens(tokens, &self.info().needs);
        let at = Call::at("loss", tokens.step);
        let loaded = self.plugin.shared();
        let loss = |store: &mut Store<Sandbox>, linked: &Linked| loaded.exports.old()?.call_policy(store, linked, tokens);
        let given: policy::Gradient = self.plugin.call(at, loss)?;
        let check = Check { name: self.name(), function: "loss", step: tokens.step, tokens: tokens.mask.len() };
        check.loss(given.loss)?;
        check.derivatives("d_logp", &given.d_logp, &tokens.mask)?;
        for (name, column) in [("d_entropy", &given.d_entropy), ("d_values", &given.d_values)] {
            if let Some(column) = column {
                check.derivatives(name, column, &tokens.mask)?;
            }
        }
        let metrics = self.plugin.checked_metrics(Role::Policy, given.metrics).map_err(|e| check.wrong(e))?;
        let same = |again: policy::Gradient| {
            let same_columns = again.d_entropy == given.d_entropy && again.d_values == given.d_values;
            again.loss.to_bits() == given.loss.to_bits() && again.d_logp == given.d_logp && same_columns
        };
        if !self.plugin.answer_again(at, false, loss).is_none_or(same) {
            return Err(self.plugin.not_stateless(at, "the loss differs"));
        }
        Ok(Gradient { loss: given.loss, d_logp: given.d_logp, d_entropy: given.d_entropy, d_values: given.d_values, metrics })
    }
}

/// Checks returned columns; the fields are what errors name.
pub(super) struct Check<'a> {
    pub name: &'a str,
    pub function: &'static str,
    pub step: u64,
    pub tokens: usize,
}

impl Check<'_> {
    pub(super) fn wrong(&self, detail: String) -> Error {
        Error::Call { name: self.name.to_owned(), function: self.function, step: Some(self.step), detail }
    }

    pub(super) fn loss(&self, loss: f64) -> Result<()> {
        match () {
            () if loss.abs() <= LARGEST => Ok(()),
            () if loss.is_finite() => {
                Err(self.wrong(format!("returned a loss of {loss:?}; the limit is {LARGEST:?} either way")))
            }
            () => Err(self.wrong(format!("returned a loss of {loss}"))),
        }
    }

    pub(super) fn column(&self, what: &str, column: &[f32]) -> Result<()> {
        self.values(what, "token", column)
    }

    /// Checks a column of one value per `item`.
    pub(super) fn values(&self, what: &str, item: &str, column: &[f32]) -> Result<()> {
        if column.len() != self.tokens {
            return Err(self.wrong(format!("returned {} {what} for {} {item}s", column.len(), self.tokens)));
        }
        match column.iter().position(|x| !x.is_finite()) {
            Some(at) => Err(self.wrong(format!("returned {} in {what} at {item} {at}", column[at]))),
            None => Ok(()),
        }
    }

    fn derivatives(&self, what: &str, column: &[f32], mask: &[u8]) -> Result<()> {
        self.column(what, column)?;
        match column.iter().zip(mask).position(|(&d, &m)| m == 0 && d != 0.0) {
            Some(at) => Err(self.wrong(format!("returned {} in {what} at token {at}, whose mask is 0", column[at]))),
            None => Ok(()),
        }
    }
}
