//! Algorithm plugins: the data they learn from, the advantages or pairs they compute for a generation, and a loss with its derivatives.

mod advantages;
mod checks;
#[cfg(test)]
mod crafted_plugins;
mod interface;
mod sent_batch;
mod teacher_prompts;

pub(super) use checks::values as check_values;
pub(super) use interface::{AlgorithmInterface, ConversionResult, CurrentAlgorithm, PreparedCall};
pub(super) use sent_batch::SentBatch;

use super::columns;
use super::contract::{algorithm, estimator, pairing};
use super::engine::PluginEngine;
use super::error::LONGEST_TEXT;
use super::instance::Plugin;
use super::loaded_plugin::PluginCall;
use super::metrics::MetricOrigin;
use super::world::Role;
use super::{Error, Metric, NeededInputs, PluginSource, Result};
use crate::config::{PluginLimits, printable};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub use super::contract::algorithm::{Data, Shape, Source as DataSource};
pub use super::contract::pairing::Pair;
pub use super::contract::types::{Batch, Column, Scale, Turn as TurnSpan, Unit, WeightedReward};
pub use teacher_prompts::{TaughtColumn, TaughtGeneration, TeacherQuestions};

/// Odd multiplier of the seeds sent to plugins; the step is added to the product.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The scored generation of all ranks, as an estimator or a pairing sees it.
#[derive(Clone, Debug)]
pub struct ScoredGeneration {
    /// Sequences of the generation, grouped by prompt.
    pub batch: Batch,
    /// Rewards of the run with their weights; their scores are columns of the batch.
    pub rewards: Vec<WeightedReward>,
}

/// An estimator's checked answer.
#[derive(Clone, Debug, Default)]
pub struct Estimates {
    /// Columns per token or per sequence, without the mask.
    pub columns: Vec<Column>,
    /// 1 for tokens that count: the estimator's mask, or the batch's if it returns none.
    pub mask: Vec<u8>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// The checked pairs that an algorithm selected from a generation.
#[derive(Clone, Debug, Default)]
pub struct PairSelection {
    /// Pairs of sequences of the batch.
    pub pairs: Vec<Pair>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// The checked result of an algorithm's `estimate` or `choose`.
#[derive(Clone, Debug)]
pub enum Assessment {
    /// For single completions: the estimator's columns and its mask.
    Columns {
        /// Columns per token or per sequence.
        columns: Vec<Column>,
        /// 1 for tokens that count.
        mask: Vec<u8>,
    },
    /// For pairs: the selected ones.
    Pairs(Vec<Pair>),
}

/// A micro-batch's checked contribution to the loss, with its derivatives.
#[derive(Clone, Debug, Default)]
pub struct MicroBatchLoss {
    /// Contribution of the micro-batch to the step's loss.
    pub loss: f64,
    /// Derivatives with respect to the entries of the columns of these names.
    pub derivatives: Vec<Column>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

impl MicroBatchLoss {
    /// Returns the derivatives with respect to a column, if the loss depends on it.
    pub fn by(&self, column: &str) -> Option<&[f32]> {
        self.derivatives.iter().find(|d| d.name == column).map(|d| &d.values[..])
    }

    /// Returns the derivatives with respect to a divergence from the teacher, if the loss depends on one.
    pub fn by_divergence(&self) -> Option<&[f32]> {
        self.derivatives.iter().find(|d| columns::divergence_of(&d.name).is_some()).map(|d| &d.values[..])
    }
}

impl Batch {
    /// Returns the column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the number of entries of a column with this unit; for the unit of the whole micro-batch, that of the first such column.
    pub fn entries(&self, unit: Unit) -> usize {
        match unit {
            Unit::Token => self.mask.len(),
            Unit::PromptToken => self.prompt_tokens.last().map_or(0, |end| *end as usize),
            Unit::Turn => self.turns.len(),
            Unit::Sequence => self.tokens.len().saturating_sub(1),
            Unit::Group => self.groups.len().saturating_sub(1),
            Unit::MicroBatch => self.columns.iter().find(|column| column.unit == unit).map_or(0, |column| column.values.len()),
        }
    }
}

/// A loaded algorithm of any version of the contract.
pub struct AlgorithmPlugin {
    plugin: Plugin,
    interface: Arc<dyn AlgorithmInterface>,
    data: Data,
    /// Units of the columns that the estimator last returned.
    estimated: BTreeMap<String, Unit>,
    /// Functions of the base plugin, which has the loss, if this plugin only estimates advantages for it.
    of_base: Option<Arc<dyn AlgorithmInterface>>,
}

impl Deref for AlgorithmPlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for AlgorithmPlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl AlgorithmPlugin {
    /// Loads and configures a plugin; `seed` is the run's.
    ///
    /// # Errors
    /// If the plugin can't be loaded with this configuration.
    pub fn load(
        engine: &PluginEngine,
        source: &PluginSource,
        config: &Map<String, Value>,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<Self> {
        if let Some(function) = advantages::estimator_of(engine, source, limits)? {
            return Self::load_over(
                engine,
                source,
                &advantages::AdvantageScriptSettings::from_config(config, &function),
                limits,
                seed,
            );
        }
        let mut plugin = Plugin::load(engine, source, Role::Algorithm, config, limits, seed)?;
        let name = plugin.name().to_owned();
        let wrong = |detail: String| Error::Config { name: name.clone(), detail: printable(&detail, LONGEST_TEXT) };
        let interface = plugin.shared().exports.algorithm().map_err(|e| wrong(e.to_string()))?;
        let data = plugin.call(PluginCall::new("describe-data"), |store, linked| interface.data(store, linked))?;
        checks::data(&data, interface.sees_generations()).map_err(&wrong)?;
        plugin.info().needs.check(Role::Algorithm, &data.estimates).map_err(&wrong)?;
        if plugin.info().needs.has(columns::HAS_TEACHER_PROMPT) && interface.teacher_prompts().is_none() {
            let detail = format!("it needs {:?}, but does not export teacher-prompts", columns::HAS_TEACHER_PROMPT);
            return Err(wrong(detail));
        }
        Ok(Self { plugin, interface, data, estimated: BTreeMap::new(), of_base: None })
    }

    /// Loads a script that estimates advantages for the loss of a built-in algorithm.
    fn load_over(
        engine: &PluginEngine,
        source: &PluginSource,
        settings: &advantages::AdvantageScriptSettings,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<Self> {
        let opened = advantages::open_base(&settings.base, source.name())?;
        let base = Self::load(engine, &opened, &settings.of_base, limits, seed)?;
        base.check_is_base(source.name())?;
        let mut plugin = Plugin::load(engine, source, Role::Algorithm, &settings.of_script, limits, seed)?;
        let interface = plugin.shared().exports.algorithm();
        let interface =
            interface.map_err(|e| Error::Config { name: source.name().to_owned(), detail: format!("its interpreter: {e}") })?;
        let schema = advantages::joint_schema(&plugin.info().config_schema, &base.info().config_schema, base.name());
        plugin.join_base(base.plugin, schema);
        Ok(Self { plugin, interface, data: base.data, estimated: BTreeMap::new(), of_base: Some(base.interface) })
    }

    /// Rejects a base that uses pairs or has no advantages.
    fn check_is_base(&self, script: &str) -> Result<()> {
        if self.interface.sees_generations() == (true, false) {
            return Ok(());
        }
        let detail = format!("its base can't be {}, which learns from no advantages", self.name());
        Err(Error::Config { name: script.to_owned(), detail })
    }

    /// Returns the data that the algorithm learns from.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Returns whether the algorithm, when it learns from generated completions, uses the rewards' scores for estimates or pairs.
    pub fn reads_scores(&self) -> bool {
        self.data.shape == Shape::Pairs || !self.data.estimates.is_empty()
    }

    /// Returns the functions of the plugin that has the loss.
    fn with_loss(&self) -> &Arc<dyn AlgorithmInterface> {
        self.of_base.as_ref().unwrap_or(&self.interface)
    }

    /// Returns the columns that the loss reads and the estimator always returns.
    pub fn required_estimates(&self) -> impl Iterator<Item = &str> {
        let (needs, optional) = (&self.plugin.loss_plugin().info().needs, self.with_loss().optional_estimates());
        self.data.estimates.iter().map(String::as_str).filter(move |name| needs.has(name) && !optional.contains(name))
    }

    /// Returns the unit of an estimate, if known from what the estimator last returned.
    pub fn unit_of_estimate(&self, name: &str) -> Option<Unit> {
        self.estimated.get(name).copied()
    }

    /// Estimates columns for a whole generation or selects pairs from it, depending on the algorithm's shape. Also returns the plugin's
    /// metrics. An algorithm that does neither learns from all tokens.
    pub fn assess(&mut self, generation: &ScoredGeneration) -> Result<(Assessment, Vec<Metric>)> {
        match self.data.shape {
            Shape::Completions if !self.interface.sees_generations().0 => {
                Ok((Assessment::Columns { columns: Vec::new(), mask: generation.batch.mask.clone() }, Vec::new()))
            }
            Shape::Completions => {
                let Estimates { columns, mask, metrics } = self.estimate(generation)?;
                Ok((Assessment::Columns { columns, mask }, metrics))
            }
            Shape::Pairs => {
                let PairSelection { pairs, metrics } = self.choose(generation)?;
                Ok((Assessment::Pairs(pairs), metrics))
            }
        }
    }

    /// Returns an estimator's columns for a whole generation. Sends only the columns that the plugin needs. A script's estimates replace
    /// those of its base; the base's other columns and metrics remain.
    pub fn estimate(&mut self, generation: &ScoredGeneration) -> Result<Estimates> {
        let at = PluginCall::with_step("estimate", generation.batch.step);
        let (mut given, own) = self.estimated_by(&self.interface.clone(), at, generation, |plugin| plugin)?;
        let Some(of_base) = self.of_base.clone() else { return Ok(own) };
        let (base, found) = self.estimated_by(&of_base, at, generation, Plugin::loss_plugin_mut)?;
        let more: Vec<Column> = base.into_iter().filter(|column| !given.iter().any(|own| own.name == column.name)).collect();
        given.extend(more);
        let (columns, mask) = self.checked_estimates(at, &given, generation)?;
        Ok(Estimates { columns, mask, metrics: own.metrics.into_iter().chain(found.metrics).collect() })
    }

    /// Calls `estimate` of the plugin or of its base. Returns the columns as sent by the plugin, and the checked answer. A script need not
    /// return everything that the loss reads, since its base returns the other columns.
    fn estimated_by(
        &mut self,
        interface: &Arc<dyn AlgorithmInterface>,
        at: PluginCall,
        generation: &ScoredGeneration,
        which: fn(&mut Plugin) -> &mut Plugin,
    ) -> Result<(Vec<Column>, Estimates)> {
        let needs = which(&mut self.plugin).info().needs.clone();
        let sent = self.generation_sent(generation, &needs)?;
        let ask = interface.estimate(&sent, &generation.rewards).map_err(|detail| self.lacks(detail))?;
        let given = which(&mut self.plugin).call(at, &ask)?.map_err(|detail| self.wrong(at, detail))?;
        let (columns, mask) = match self.of_base {
            Some(_) => {
                checks::estimates(&given.columns, &self.data, &generation.batch).map_err(|detail| self.wrong(at, detail))?
            }
            None => self.checked_estimates(at, &given.columns, generation)?,
        };
        let of = self.metrics_of();
        let metrics = which(&mut self.plugin).checked_metrics(of, given.metrics).map_err(|detail| self.wrong(at, detail))?;
        let same = |again: ConversionResult<estimator::Estimates>| again.is_ok_and(|again| again.columns == given.columns);
        let plugin = which(&mut self.plugin);
        if !plugin.answer_again(at, false, &ask).is_none_or(same) {
            return Err(plugin.not_stateless(at, "the advantages differ"));
        }
        Ok((given.columns, Estimates { columns, mask, metrics }))
    }

    /// Checks the estimates that the loss will read, and records their units. Returns the columns and the mask.
    fn checked_estimates(
        &mut self,
        at: PluginCall,
        given: &[Column],
        generation: &ScoredGeneration,
    ) -> Result<(Vec<Column>, Vec<u8>)> {
        let (columns, mask) = checks::estimates(given, &self.data, &generation.batch).map_err(|detail| self.wrong(at, detail))?;
        if let Some(name) = self.required_estimates().find(|name| !columns.iter().any(|column| column.name == **name)) {
            let detail = format!("returned no column {name:?}, which is among its estimates and which its loss needs");
            return Err(self.wrong(at, detail));
        }
        self.estimated = columns.iter().map(|column| (column.name.clone(), column.unit)).collect();
        Ok((columns, mask))
    }

    /// Returns the pairs that the algorithm selects from a whole generation. Sends only the columns that the plugin needs.
    pub fn choose(&mut self, generation: &ScoredGeneration) -> Result<PairSelection> {
        let (at, interface) = (PluginCall::with_step("choose", generation.batch.step), self.interface.clone());
        let sent = self.generation_sent(generation, &self.info().needs.clone())?;
        let ask = interface.choose(&sent, &generation.rewards).map_err(|detail| self.lacks(detail))?;
        let given = self.plugin.call(at, &ask)?.map_err(|detail| self.wrong(at, detail))?;
        checks::pairs(&given.pairs, &generation.batch).map_err(|detail| self.wrong(at, detail))?;
        let metrics = self.metrics(at, given.metrics)?;
        let same = |again: ConversionResult<pairing::Choice>| again.is_ok_and(|again| again.pairs == given.pairs);
        if !self.plugin.answer_again(at, false, &ask).is_none_or(same) {
            return Err(self.plugin.not_stateless(at, "the pairs differ"));
        }
        Ok(PairSelection { pairs: given.pairs, metrics })
    }

    /// Returns one micro-batch's contribution to the loss. Sends only the columns that the plugin needs.
    pub fn loss(&mut self, batch: &Batch) -> Result<MicroBatchLoss> {
        let (at, interface) = (PluginCall::with_step("loss", batch.step), self.with_loss().clone());
        let needs = self.plugin.loss_plugin().info().needs.clone();
        let sent = SentBatch::new(batch, self.seed_of(batch.seed, batch.step), |column| needs.has(&column.name));
        let ask = interface.loss(&sent).map_err(|detail| self.lacks(detail))?;
        let given = self.plugin.loss_plugin_mut().call(at, &ask)?.map_err(|detail| self.wrong(at, detail))?;
        checks::loss(given.loss)
            .and_then(|()| checks::derivatives(&given.derivatives, &needs, batch, interface.knows_mask()))
            .map_err(|detail| self.wrong(at, detail))?;
        let metrics = self.metrics(at, given.metrics)?;
        let same = |again: ConversionResult<algorithm::Gradient>| {
            again.is_ok_and(|again| again.loss.to_bits() == given.loss.to_bits() && again.derivatives == given.derivatives)
        };
        if !self.plugin.loss_plugin_mut().answer_again(at, false, &ask).is_none_or(same) {
            return Err(self.plugin.loss_plugin().not_stateless(at, "the loss differs"));
        }
        Ok(MicroBatchLoss { loss: given.loss, derivatives: given.derivatives, metrics })
    }

    /// Returns the batch to send for a generation: the rewards' scores, and the columns that the plugin needs.
    fn generation_sent<'a>(&self, generation: &'a ScoredGeneration, needs: &NeededInputs) -> Result<SentBatch<'a>> {
        let by_turn = needs.has(columns::TURN_REWARD);
        if by_turn && generation.batch.turns.is_empty() && generation.batch.entries(Unit::Sequence) > 0 {
            return Err(
                self.lacks("it needs the rewards of turns, which only episodes have; set environment or agent".to_owned())
            );
        }
        let is_reward = |name: &str| generation.rewards.iter().any(|reward| columns::reward(&reward.name) == name);
        let is_of_turn =
            |name: &str| by_turn && name.strip_prefix(columns::TURN_REWARD).is_some_and(|rest| rest.starts_with('/'));
        let needed = |column: &Column| needs.has(&column.name) || is_reward(&column.name) || is_of_turn(&column.name);
        Ok(SentBatch::new(&generation.batch, self.seed_of(generation.batch.seed, generation.batch.step), needed))
    }

    /// Returns the seed that is sent with a batch, which has this one in the run.
    fn seed_of(&self, seed: u64, step: u64) -> u64 {
        self.plugin.seed().wrapping_add(seed).wrapping_mul(ODD).wrapping_add(step)
    }

    /// Checks the metrics of an answer.
    fn metrics(&self, at: PluginCall, given: Vec<Metric>) -> Result<Vec<Metric>> {
        self.plugin.checked_metrics(self.metrics_of(), given).map_err(|detail| self.wrong(at, detail))
    }

    /// Returns the origin of the algorithm's metrics; for pairs and labelled completions, the host itself reports entropies.
    fn metrics_of(&self) -> MetricOrigin {
        match self.data.shape {
            Shape::Completions if !self.info().needs.has(columns::LABEL) => MetricOrigin::Completions,
            _ => MetricOrigin::Pairs,
        }
    }

    /// Returns the error for an invalid answer.
    fn wrong(&self, at: PluginCall, detail: String) -> Error {
        Error::Call {
            name: self.name().to_owned(),
            function: at.function,
            step: at.step,
            detail: printable(&detail, LONGEST_TEXT),
        }
    }

    /// Returns the error for a run that lacks an input the plugin needs.
    fn lacks(&self, detail: String) -> Error {
        Error::Config { name: self.name().to_owned(), detail }
    }
}

#[cfg(test)]
mod tests;
