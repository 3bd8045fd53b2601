//! Options of a pass.

use super::Weights;
use super::adapter_dropout::Dropout;
use super::adapter_dropout::MAPS;
use super::weights::Linear;
use crate::ops::{self, magnitude};
use candle_core::Tensor;

use super::embedding_noise::EmbeddingNoise;

/// Options of a pass.
pub(super) struct PassOptions {
    /// Whether to store only the layers' inputs for the backward pass, which recomputes the rest.
    pub recompute: bool,
    /// Whether to measure how evenly experts are used. The last layer is then computed for all positions.
    pub balances: bool,
    pub dropout: Option<Dropout>,
    pub noise: Option<EmbeddingNoise>,
    /// Lengths of the rows of the weights at the time of the pass, for magnitudes.
    pub lengths: Option<RowLengths>,
}

/// Lengths of the rows of all weights with their adapters, `[out]`, by layer and number of the map.
pub(super) struct RowLengths(Vec<[Option<Tensor>; MAPS]>);

impl RowLengths {
    /// Computes the lengths for the current weights; `None` if the adapter has no magnitudes.
    pub(super) fn from_weights(weights: &Weights) -> ops::Result<Option<Self>> {
        if !weights.lora.is_some_and(|lora| lora.use_dora) {
            return Ok(None);
        }
        let of_map = |l: &Linear| {
            let adapter = l.adapter.as_ref().filter(|adapter| adapter.magnitude.is_some());
            adapter.map(|adapter| magnitude::lengths(l.matrix(), &adapter.low_rank())).transpose()
        };
        let mut all = Vec::with_capacity(weights.layers.len());
        for layer in &weights.layers {
            let mut of_layer: [Option<Tensor>; MAPS] = Default::default();
            for (map, linear) in layer.maps().numbered() {
                of_layer[map] = of_map(linear)?;
            }
            all.push(of_layer);
        }
        if let Some(own) = &weights.layer_inputs {
            // Counts as that of a layer behind the last.
            let mut below: [Option<Tensor>; MAPS] = Default::default();
            below[0] = of_map(&own.projection)?;
            all.push(below);
        }
        Ok(Some(Self(all)))
    }

    /// Returns the lengths for a layer's map.
    pub(super) fn get(&self, layer: usize, map: usize) -> Option<&Tensor> {
        self.0.get(layer)?.get(map)?.as_ref()
    }
}
