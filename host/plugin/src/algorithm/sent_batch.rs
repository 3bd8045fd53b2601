//! A batch as sent to a plugin: without the columns that the plugin does not need, and without copies of the others.

use super::{Batch, Column, Scale, TurnSpan, Unit};
use wasmtime::component::{ComponentType, Lower};

/// A batch as sent to a plugin. The fields are those of the contract's record.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct SentBatch<'a> {
    pub step: u64,
    pub seed: u64,
    pub groups: &'a [u32],
    pub tokens: &'a [u32],
    #[component(name = "prompt-tokens")]
    pub prompt_tokens: &'a [u32],
    pub turns: &'a [TurnSpan],
    pub mask: &'a [u8],
    pub columns: Vec<&'a Column>,
    pub scale: Scale,
}

impl<'a> SentBatch<'a> {
    /// Selects from a batch the columns that are `needed`, and the data that belongs to them.
    pub(crate) fn new(batch: &'a Batch, seed: u64, needed: impl Fn(&Column) -> bool) -> Self {
        let columns: Vec<&Column> = batch.columns.iter().filter(|column| needed(column)).collect();
        let has = |unit: Unit| columns.iter().any(|column| column.unit == unit);
        Self {
            step: batch.step,
            seed,
            groups: &batch.groups,
            tokens: &batch.tokens,
            prompt_tokens: if has(Unit::PromptToken) { &batch.prompt_tokens } else { &[] },
            turns: if has(Unit::Turn) { &batch.turns } else { &[] },
            mask: &batch.mask,
            columns,
            scale: batch.scale,
        }
    }

    /// Returns the column of this name.
    pub(crate) fn column(&self, name: &str) -> Option<&'a Column> {
        self.columns.iter().copied().find(|column| column.name == name)
    }

    /// Returns a copy of a column's values.
    pub(crate) fn values(&self, name: &str) -> Option<Vec<f32>> {
        self.column(name).map(|column| column.values.clone())
    }

    /// Returns the number of sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }

    /// Returns the number of tokens of a sequence.
    pub(crate) fn length(&self, sequence: usize) -> usize {
        (self.tokens[sequence + 1] - self.tokens[sequence]) as usize
    }
}
