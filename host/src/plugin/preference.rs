//! Preference plugins: compute a loss over pairs of completions with its derivatives. Online ones also choose the pairs among a
//! generation's completions.

use super::adapters::weighted_preference::LogSumSquares;
use super::adapters::{Beside, pairing, preference};
use super::asked;
use super::columns;
use super::engine::Engine;
use super::instance::Plugin;
use super::loaded::Call;
use super::old::{Rollouts, Scale};
use super::policy::Check;
use super::sandbox::Sandbox;
use super::world::Role;
use super::{Error, Metric, Result, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

pub use super::adapters::pairing::Pair;
pub use super::adapters::prompted_preference::Prompts;

/// One completion of each pair, per token.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Where each completion begins; one entry more than there are pairs.
    pub offsets: Vec<u32>,
    /// Log-probabilities, natural logarithms.
    pub logp: Vec<f32>,
    /// The same under the reference model.
    pub ref_logp: Option<Vec<f32>>,
    /// Mean over the vocabulary of the raw logits.
    pub mean_logits: Option<Vec<f32>>,
    /// Logarithm of the sum over the vocabulary of the squared probabilities.
    pub log_sum_squares: Option<Vec<f32>>,
}

/// A micro-batch of pairs.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// The optimizer step.
    pub step: u64,
    /// The better completion of each pair.
    pub chosen: Side,
    /// The worse one.
    pub rejected: Side,
    /// Their prompts, for losses that depend on them.
    pub prompts: Option<Prompts>,
    /// What the step's loss is divided by.
    pub scale: Scale,
}

/// A micro-batch of pairs' part of the loss and its derivatives, per token.
#[derive(Clone, Debug, Default)]
pub struct PairGradient {
    /// This micro-batch's part of the step's loss.
    pub loss: f64,
    /// With respect to the log-probabilities of the chosen completions.
    pub d_chosen: Vec<f32>,
    /// With respect to those of the rejected completions.
    pub d_rejected: Vec<f32>,
    /// With respect to those of the prompts, if the loss depends on them.
    pub d_prompts: Option<Vec<f32>>,
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
        let sent = asked::pairs(pairs, &self.info().needs);
        let (at, beside) = (Call::at("loss", pairs.step), self.beside(pairs)?);
        let loaded = self.plugin.shared();
        let loss =
            |store: &mut Store<Sandbox>, linked: &Linked| loaded.exports.old()?.call_preference(store, linked, &sent, &beside);
        let (given, d_prompts) = self.plugin.call(at, loss)?;
        let check = |tokens| Check { name: self.name(), function: "loss", step: pairs.step, tokens };
        check(0).loss(given.loss)?;
        check(pairs.chosen.logp.len()).column("d_chosen", &given.d_chosen)?;
        check(pairs.rejected.logp.len()).column("d_rejected", &given.d_rejected)?;
        if let (Some(d_prompts), Some(prompts)) = (&d_prompts, &pairs.prompts) {
            check(prompts.logp.len()).column("d_prompts", d_prompts)?;
        }
        let metrics = self.plugin.checked_metrics(Role::Preference, given.metrics).map_err(|e| check(0).wrong(e))?;
        let same = |(again, prompts): (preference::Gradient, Option<Vec<f32>>)| {
            let columns = again.d_chosen == given.d_chosen && again.d_rejected == given.d_rejected && prompts == d_prompts;
            again.loss.to_bits() == given.loss.to_bits() && columns
        };
        if !self.plugin.answer_again(at, false, loss).is_none_or(same) {
            return Err(self.plugin.not_stateless(at, "the loss differs"));
        }
        Ok(PairGradient { loss: given.loss, d_chosen: given.d_chosen, d_rejected: given.d_rejected, d_prompts, metrics })
    }

    /// Returns the columns that a loss gets beside its pairs.
    fn beside(&self, pairs: &Pairs) -> Result<Beside> {
        let missing = |column: &str| Error::Config {
            name: self.name().to_owned(),
            detail: format!("it asks for {column}, which this batch does not have"),
        };
        let needs = &self.info().needs;
        if needs.has(columns::LOG_SUM_SQUARES) {
            let side = |side: &Side| side.log_sum_squares.clone().ok_or_else(|| missing("log_sum_squares"));
            return Ok(Beside::Squares(LogSumSquares { chosen: side(&pairs.chosen)?, rejected: side(&pairs.rejected)? }));
        }
        if needs.has(columns::PROMPT_LOGP) {
            return Ok(Beside::Prompts(pairs.prompts.clone().ok_or_else(|| missing("prompt_logp"))?));
        }
        Ok(Beside::Nothing)
    }

    /// Chooses pairs among a generation's completions. Both completions of a pair continue the same prompt.
    pub fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice> {
        let rollouts = &*asked::rollouts(rollouts, &self.info().needs);
        let at = Call::at("choose", rollouts.step);
        let loaded = self.plugin.shared();
        let choose = |store: &mut Store<Sandbox>, linked: &Linked| loaded.exports.old()?.call_choose(store, linked, rollouts);
        let given: pairing::Choice = self.plugin.call(at, choose)?;
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
        let numbers = |pairs: &[Pair]| pairs.iter().map(|pair| (pair.chosen, pair.rejected)).collect::<Vec<_>>();
        let same = |again: pairing::Choice| numbers(&again.pairs) == numbers(&given.pairs);
        if !self.plugin.answer_again(at, false, choose).is_none_or(same) {
            return Err(self.plugin.not_stateless(at, "the pairs differ"));
        }
        Ok(Choice { pairs: given.pairs, metrics })
    }
}
