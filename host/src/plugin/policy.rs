//! Policy plugins: advantages from a generation's rewards, and a loss with its derivatives.

use super::engine::Engine;
use super::instance::Plugin;
use super::loaded::Call;
use super::world::{Guiding, Role, policy};
use super::{Error, Metric, Needs, Result, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

pub use super::world::policy::Tokens;
pub use super::world::types::{RewardColumn, Rollouts, Scale};

/// What an algorithm makes of a generation batch, per token.
#[derive(Clone, Debug, Default)]
pub struct Advantages {
    /// Advantages.
    pub advantages: Vec<f32>,
    /// What a critic learns.
    pub returns: Option<Vec<f32>>,
    /// 1 for tokens that count; the given mask where the plugin has no own.
    pub mask: Vec<u8>,
    /// Figures to log.
    pub metrics: Vec<Metric>,
}

/// A micro-batch's part of the loss and its derivatives, per token.
#[derive(Clone, Debug, Default)]
pub struct Gradient {
    /// This micro-batch's part of the step's loss.
    pub loss: f64,
    /// By the log-probabilities.
    pub d_logp: Vec<f32>,
    /// By the entropies.
    pub d_entropy: Option<Vec<f32>>,
    /// By the critic's values.
    pub d_values: Option<Vec<f32>>,
    /// Figures to log.
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
    /// Loads and configures; `seed` is the run's.
    pub fn load(engine: &Engine, source: &Source, config: &Map<String, Value>, limits: &Limits, seed: u64) -> Result<Self> {
        Ok(Self { plugin: Plugin::load(engine, source, Role::Policy, config, limits, seed)? })
    }

    /// Advantages for a whole generation batch, of which only the columns that the plugin asks for are sent.
    pub fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages> {
        let rollouts = &*asked_rollouts(rollouts, &self.info().needs);
        let given = self.plugin.call(Call::at("estimate", rollouts.step), |store, linked| {
            Guiding::new(&mut *store, linked)?.rlhost_plugin_policy().call_estimate(&mut *store, rollouts)
        })?;
        let check = Check { name: self.name(), function: "estimate", step: rollouts.step, tokens: rollouts.mask.len() };
        check.column("advantages", &given.advantages)?;
        if let Some(returns) = &given.returns {
            check.column("returns", returns)?;
        }
        let mask = given.mask.unwrap_or_else(|| rollouts.mask.clone());
        if mask.len() != check.tokens || mask.iter().any(|&m| m > 1) {
            return Err(check.wrong(format!(
                "returned a mask of {} entries for {} tokens, or entries other than 0 and 1",
                mask.len(),
                check.tokens
            )));
        }
        let metrics = self.plugin.checked_metrics(given.metrics).map_err(|e| check.wrong(e))?;
        Ok(Advantages { advantages: given.advantages, returns: given.returns, mask, metrics })
    }

    /// One micro-batch's part of the loss. Only the columns that the plugin asks for are sent.
    pub fn loss(&mut self, tokens: &Tokens) -> Result<Gradient> {
        let tokens = &*asked_tokens(tokens, &self.info().needs);
        let given: policy::Gradient = self.plugin.call(Call::at("loss", tokens.step), |store, linked| {
            Guiding::new(&mut *store, linked)?.rlhost_plugin_policy().call_loss(&mut *store, tokens)
        })?;
        let check = Check { name: self.name(), function: "loss", step: tokens.step, tokens: tokens.mask.len() };
        check.number("a loss", given.loss)?;
        check.derivatives("d_logp", &given.d_logp, &tokens.mask)?;
        for (name, column) in [("d_entropy", &given.d_entropy), ("d_values", &given.d_values)] {
            if let Some(column) = column {
                check.derivatives(name, column, &tokens.mask)?;
            }
        }
        let metrics = self.plugin.checked_metrics(given.metrics).map_err(|e| check.wrong(e))?;
        Ok(Gradient { loss: given.loss, d_logp: given.d_logp, d_entropy: given.d_entropy, d_values: given.d_values, metrics })
    }
}

/// A generation with no other columns than are asked for. Nobody makes entropies for it.
fn asked_rollouts<'a>(given: &'a Rollouts, needs: &Needs) -> Cow<'a, Rollouts> {
    let more = given.ref_logp.is_some() && !needs.ref_logp || given.values.is_some() && !needs.values;
    if !more && given.entropy.is_none() {
        return Cow::Borrowed(given);
    }
    let Rollouts { ref_logp, values, .. } = given;
    let ref_logp = ref_logp.clone().filter(|_| needs.ref_logp);
    let values = values.clone().filter(|_| needs.values);
    Cow::Owned(Rollouts { ref_logp, values, entropy: None, ..given.clone() })
}

/// A micro-batch with no other columns than are asked for, so that a plugin which forgets to ask fails wherever it is tried.
fn asked_tokens<'a>(given: &'a Tokens, needs: &Needs) -> Cow<'a, Tokens> {
    let more = given.ref_logp.is_some() && !needs.ref_logp
        || given.sampling_logp.is_some() && !needs.sampling_logp
        || given.entropy.is_some() && !needs.entropy
        || (given.values.is_some() || given.old_values.is_some() || given.returns.is_some()) && !needs.values;
    if !more {
        return Cow::Borrowed(given);
    }
    let mut tokens = given.clone();
    tokens.ref_logp = tokens.ref_logp.filter(|_| needs.ref_logp);
    tokens.sampling_logp = tokens.sampling_logp.filter(|_| needs.sampling_logp);
    tokens.entropy = tokens.entropy.filter(|_| needs.entropy);
    for column in [&mut tokens.values, &mut tokens.old_values, &mut tokens.returns] {
        *column = column.take().filter(|_| needs.values);
    }
    Cow::Owned(tokens)
}

/// Checks of returned columns, with what their errors name.
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

    pub(super) fn number(&self, what: &str, number: f64) -> Result<()> {
        if number.is_finite() { Ok(()) } else { Err(self.wrong(format!("returned {what} of {number}"))) }
    }

    pub(super) fn column(&self, what: &str, column: &[f32]) -> Result<()> {
        if column.len() != self.tokens {
            return Err(self.wrong(format!("returned {} {what} for {} tokens", column.len(), self.tokens)));
        }
        match column.iter().position(|x| !x.is_finite()) {
            Some(at) => Err(self.wrong(format!("returned {} in {what} at token {at}", column[at]))),
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
