//! Preference plugins: compute a loss over pairs of completions with its derivatives. Online ones also choose the pairs among a
//! generation's completions.

use super::asked;
use super::engine::Engine;
use super::instance::Plugin;
use super::loaded::Call;
use super::policy::Check;
use super::world::{PairingUp, Preferring, Role, pairing, preference};
use super::{Metric, Result, Rollouts, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

pub use super::world::pairing::Pair;
pub use super::world::preference::{Pairs, Side};

/// A micro-batch of pairs' part of the loss and its derivatives, per token.
#[derive(Clone, Debug, Default)]
pub struct PairGradient {
    /// This micro-batch's part of the step's loss.
    pub loss: f64,
    /// With respect to the log-probabilities of the chosen completions.
    pub d_chosen: Vec<f32>,
    /// With respect to those of the rejected completions.
    pub d_rejected: Vec<f32>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// Pairs chosen from a generation's completions.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Rows of the chosen and the rejected completions.
    pub pairs: Vec<Pair>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// A loaded preference algorithm.
pub struct PreferencePlugin {
    plugin: Plugin,
    online: bool,
}

impl Deref for PreferencePlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for PreferencePlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl PreferencePlugin {
    /// Loads and configures a plugin; `seed` is the run's. Those that are `online` choose their pairs themselves.
    pub fn load(
        engine: &Engine,
        source: &Source,
        online: bool,
        config: &Map<String, Value>,
        limits: &Limits,
        seed: u64,
    ) -> Result<Self> {
        let role = if online { Role::OnlinePreference } else { Role::Preference };
        Ok(Self { plugin: Plugin::load(engine, source, role, config, limits, seed)?, online })
    }

    /// Returns whether it creates its pairs itself.
    pub fn is_online(&self) -> bool {
        self.online
    }

    /// Returns one micro-batch's part of the loss. Sends only the columns that the plugin asks for, as does [`Self::choose`].
    pub fn loss(&mut self, pairs: &Pairs) -> Result<PairGradient> {
        let pairs = &*asked::pairs(pairs, &self.info().needs);
        let given: preference::Gradient = self.plugin.call(Call::at("loss", pairs.step), |store, linked| {
            Preferring::new(&mut *store, linked)?.rlhost_plugin_preference().call_loss(&mut *store, pairs)
        })?;
        let check = |tokens| Check { name: self.name(), function: "loss", step: pairs.step, tokens };
        check(0).number("a loss", given.loss)?;
        check(pairs.chosen.logp.len()).column("d_chosen", &given.d_chosen)?;
        check(pairs.rejected.logp.len()).column("d_rejected", &given.d_rejected)?;
        let metrics = self.plugin.checked_metrics(Role::Preference, given.metrics).map_err(|e| check(0).wrong(e))?;
        Ok(PairGradient { loss: given.loss, d_chosen: given.d_chosen, d_rejected: given.d_rejected, metrics })
    }

    /// Chooses pairs among a generation's completions. Both completions of a pair continue the same prompt.
    pub fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice> {
        let rollouts = &*asked::rollouts(rollouts, &self.info().needs);
        let given: pairing::Choice = self.plugin.call(Call::at("choose", rollouts.step), |store, linked| {
            PairingUp::new(&mut *store, linked)?.rlhost_plugin_pairing().call_choose(&mut *store, rollouts)
        })?;
        let check = Check { name: self.name(), function: "choose", step: rollouts.step, tokens: 0 };
        let rows = rollouts.prompt_of.len();
        let mut seen = BTreeSet::new();
        for pair in &given.pairs {
            if !seen.insert((pair.chosen, pair.rejected)) {
                return Err(check.wrong(format!("returned the pair of rows {} and {} twice", pair.chosen, pair.rejected)));
            }
            if seen.len() > rows {
                return Err(check.wrong(format!("returned more pairs than there are completions ({rows})")));
            }
            let of = |row: u32| rollouts.prompt_of.get(row as usize);
            if of(pair.chosen).is_none() || of(pair.chosen) != of(pair.rejected) || pair.chosen == pair.rejected {
                let (chosen, rejected) = (pair.chosen, pair.rejected);
                return Err(check.wrong(format!(
                    "returned a pair of rows {chosen} and {rejected}, which must be two of the {rows} completions and have the same prompt"
                )));
            }
        }
        let metrics = self.plugin.checked_metrics(Role::Preference, given.metrics).map_err(|e| check.wrong(e))?;
        Ok(Choice { pairs: given.pairs, metrics })
    }
}
