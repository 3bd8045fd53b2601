//! Adapters of `peft` on a model's tables: low-rank ones on the embedding, on learned positions and on the output matrix, and single rows
//! (`trainable_token_indices`). They are merged when read, so the model can be used but not trained.

use super::adapter_reader::{AdapterReader, BASE};
use super::trained_modules::HEAD_MODULE;
use super::trained_rows::INDICES;
use super::{Result, Weights};
use crate::ops::low_rank::LowRankAdapter;
use crate::ops::{self, Precision};
use candle_core::{DType, Tensor};

/// Suffix of the name of a table's trained rows, after its module's name.
const ROWS: &str = "token_adapter.trainable_tokens_delta";

impl AdapterReader {
    /// Merges the adapters on tables into the tables. Returns the setting that defines them, if there are any.
    pub(super) fn merge_tables(&mut self, weights: &mut Weights) -> Result<Option<&'static str>> {
        let names = weights.names;
        let (tied, embedding) = (weights.head.is_none() && !weights.is_value_model(), weights.embedding.clone());
        let low_rank = self.low_rank(names.embedding, &embedding)?;
        let rows = self.rows(names.embedding, true, &embedding)?;
        let head = if weights.is_value_model() { None } else { self.head(weights.head.as_ref().unwrap_or(&embedding))? };
        let of_head = if tied || weights.is_value_model() { None } else { self.rows(HEAD_MODULE, false, weights.output())? };
        let positions = names.positions.zip(weights.positions.clone());
        let positions = positions.map(|(name, table)| self.low_rank(name, &table)).transpose()?.flatten();
        let by_rows = rows.is_some() || of_head.is_some();
        let is_wide = low_rank.is_some() || head.is_some();
        if by_rows && (is_wide || self.lora.trained_modules.unties()) {
            let detail = format!("{INDICES} is not supported beside other changes of the embedding or the output matrix");
            return Err(self.misconfigured(detail));
        }
        if is_wide && tied {
            weights.head = Some(embedding);
        }
        let changed = is_wide || positions.is_some();
        if let Some(table) = low_rank.or(rows) {
            weights.embedding = table;
        }
        if let Some(table) = head.or(of_head) {
            weights.head = Some(table);
        }
        if positions.is_some() {
            weights.positions = positions;
        }
        Ok(if by_rows { Some(INDICES) } else { changed.then_some("an adapter on the embedding or the output matrix") })
    }

    /// Returns the table that the adapter's file has in place of the model's, or else a copy of the model's. `peft` writes tables to the
    /// file too.
    fn base_of(&mut self, module: &str, table: &Tensor) -> Result<Tensor> {
        let own = self.take(&format!("{module}.{BASE}.weight"), table.dims())?;
        own.map_or_else(|| Ok(ops::copied(&ops::cast(table, DType::F32)?)?), Ok)
    }

    /// Returns a table `[V, D]` with its low-rank adapter merged in, `A: [r, V]` and `B: [D, r]`.
    fn low_rank(&mut self, module: &str, table: &Tensor) -> Result<Option<Tensor>> {
        let ((rows, width), own) = (table.dims2()?, self.settings_of(module)?);
        let parts = (
            self.take(&format!("{module}.lora_embedding_A"), &[own.r, rows])?,
            self.take(&format!("{module}.lora_embedding_B"), &[width, own.r])?,
        );
        let (a, b) = match parts {
            (Some(a), Some(b)) => (b.t()?.contiguous()?, a.t()?.contiguous()?),
            (None, None) => return Ok(None),
            _ => return Err(self.fail(format!("{module} has only one of lora_embedding_A and lora_embedding_B"))),
        };
        let base = self.base_of(module, table)?;
        Ok(Some(LowRankAdapter { a: &a, b: &b, scale: own.scale(), precision: Precision::F32 }.merged(&base)?))
    }

    /// Returns the output matrix with its adapter merged in.
    fn head(&mut self, table: &Tensor) -> Result<Option<Tensor>> {
        let Some(adapter) = self.linear(HEAD_MODULE, table.dims2()?)? else { return Ok(None) };
        if adapter.bias.is_some() {
            return Err(self.misconfigured(format!("lora_bias is not supported on {HEAD_MODULE}, which has no bias")));
        }
        let base = self.base_of(HEAD_MODULE, table)?;
        Ok(Some(adapter.merged((&base).into())?))
    }

    /// Returns a table with the rows of the adapter's file.
    fn rows(&mut self, module: &str, is_embedding: bool, table: &Tensor) -> Result<Option<Tensor>> {
        let (count, width) = table.dims2()?;
        let Some(indices) = self.rows.table_rows(module, is_embedding).map(<[u32]>::to_vec) else { return Ok(None) };
        if let Some(index) = indices.iter().find(|index| **index as usize >= count) {
            return Err(self.misconfigured(format!("{INDICES} has {index}, but {module} has {count} rows")));
        }
        let rows = ops::to_vec(&self.needed(&format!("{module}.{ROWS}"), &[indices.len(), width], INDICES)?)?;
        let base = self.base_of(module, table)?;
        ops::write(&base, |values| {
            for (index, row) in indices.iter().zip(rows.chunks(width)) {
                let start = *index as usize * width;
                values[start..start + width].copy_from_slice(row);
            }
        })?;
        Ok(Some(base))
    }
}
