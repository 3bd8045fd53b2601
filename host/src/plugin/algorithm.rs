//! Algorithms: what they learn from, the advantages or pairs that they make of a generation, and a loss with its derivatives.

use super::contract::types;
use super::engine::Engine;
use super::instance::Plugin;
use super::{Metric, Result, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::ops::{Deref, DerefMut};

pub use super::contract::algorithm::{Data, Shape, Source as Origin};
pub use super::contract::pairing::Pair;
pub use super::contract::types::{Batch, Column, Scale, Turn as TurnSpan, Unit, WeightedReward};

/// A generation as an estimator or a pairing sees it: that of all ranks.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Its sequences, in groups of a prompt.
    pub batch: Batch,
    /// Its rewards, whose scores are columns.
    pub rewards: Vec<WeightedReward>,
}

/// An estimator's answer, checked.
#[derive(Clone, Debug, Default)]
pub struct Estimates {
    /// Columns per token or per sequence, without the mask.
    pub columns: Vec<Column>,
    /// 1 for tokens that count: the estimator's mask, or the batch's if it returns none.
    pub mask: Vec<u8>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// Pairs that an algorithm makes of a generation, checked.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Sequences of the batch.
    pub pairs: Vec<Pair>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// A micro-batch's part of the loss with its derivatives, checked.
#[derive(Clone, Debug, Default)]
pub struct Gradient {
    /// This micro-batch's part of the step's loss.
    pub loss: f64,
    /// Derivatives by the entries of the columns of these names.
    pub derivatives: Vec<Column>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

impl Gradient {
    /// Returns the derivatives with respect to a column, if the loss depends on it.
    pub fn by(&self, column: &str) -> Option<&[f32]> {
        self.derivatives.iter().find(|d| d.name == column).map(|d| &d.values[..])
    }
}

impl Batch {
    /// Returns the column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the number of entries that a column of this unit has; for the whole micro-batch, that of its first such column.
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
pub struct Algorithm {
    plugin: Plugin,
    data: Data,
}

impl Deref for Algorithm {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for Algorithm {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl Algorithm {
    /// Loads and configures a plugin; `seed` is the run's.
    pub fn load(_engine: &Engine, _source: &Source, _config: &Map<String, Value>, _limits: &Limits, _seed: u64) -> Result<Self> {
        todo!()
    }

    /// Returns what it learns from.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Returns an estimator's columns for a whole generation.
    pub fn estimate(&mut self, _generation: &Generation) -> Result<Estimates> {
        todo!()
    }

    /// Returns the pairs that it makes of a whole generation.
    pub fn choose(&mut self, _generation: &Generation) -> Result<Choice> {
        todo!()
    }

    /// Returns one micro-batch's part of the loss. Sends only the columns that the plugin needs.
    pub fn loss(&mut self, _batch: &Batch) -> Result<Gradient> {
        todo!()
    }
}
