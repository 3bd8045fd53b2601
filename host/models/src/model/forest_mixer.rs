//! Attention and recurrences over a forest, and their gradients.

use super::Result;
use super::mixer::{AttentionOutput, TokenMixer, other_kind};
use crate::ops::Forest;
use crate::ops::attention::{self, AttentionConfig};
use crate::ops::convolution::{self, Convolution};
use crate::ops::recurrent_network::{self, RecurrentNetwork};
use candle_core::Tensor;

/// Mixes tokens with the earlier tokens of a forest.
pub(super) struct ForestMixer<'a> {
    pub forest: &'a Forest,
    /// Rows whose attention results are needed; `None` for all.
    pub rows: Option<&'a [usize]>,
    pub attention: AttentionConfig,
    /// Keys and values of an earlier layer, if this one reads them.
    pub shared: Option<[Tensor; 2]>,
    /// The layer's attention sinks, if it has any.
    pub sinks: Option<&'a Tensor>,
}

impl TokenMixer for ForestMixer<'_> {
    fn attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionOutput> {
        let (out, log_sum) = match self.rows {
            None => attention::forward(q, k, v, self.forest, self.attention)?,
            Some(rows) => attention::forward_rows(q, k, v, self.forest, rows, self.attention)?,
        };
        Ok(AttentionOutput::with_sinks(out, log_sum, self.sinks)?)
    }

    fn attend_to_shared(&mut self, q: &Tensor) -> Result<AttentionOutput> {
        let [k, v] = self.shared.clone().ok_or_else(other_kind)?;
        self.attend(q, &k, &v)
    }

    fn convolve(&mut self, joined: &Tensor, convolution: Convolution<'_>) -> Result<Tensor> {
        Ok(convolution::forward(joined, convolution, self.forest, None)?)
    }

    fn run_network(&mut self, inputs: &[Tensor], network: RecurrentNetwork<'_>) -> Result<Tensor> {
        Ok(recurrent_network::forward(inputs, network, self.forest, None)?)
    }
}
