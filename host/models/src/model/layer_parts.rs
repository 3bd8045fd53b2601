//! The parts of a decoder's layers: attention or a recurrence, and an MLP or experts, or only one of them.

use super::Architecture;
use super::layer_blocks::LayerBlock;
use super::mixture::Mixture;

impl Architecture {
    /// Returns the part of a layer, if its layers have only one.
    fn block(&self, layer: usize) -> Option<LayerBlock> {
        self.blocks.as_ref().map(|blocks| blocks[layer])
    }

    /// Returns whether a layer has attention or a recurrence.
    pub fn mixes(&self, layer: usize) -> bool {
        self.block(layer).is_none_or(|block| matches!(block, LayerBlock::Attention | LayerBlock::Recurrence))
    }

    /// Returns whether a layer attends.
    pub fn attends(&self, layer: usize) -> bool {
        self.mixes(layer) && !self.is_recurrent(layer)
    }

    /// Returns whether a layer has an MLP or experts.
    pub fn feeds(&self, layer: usize) -> bool {
        self.block(layer).is_none_or(|block| matches!(block, LayerBlock::Mlp | LayerBlock::Experts))
    }

    /// Returns the number of values of a token that a layer keeps for its gradient: inputs of the layer's maps, norms and heads.
    pub fn kept_of_layer(&self, layer: usize) -> usize {
        match self.block(layer) {
            None => 2 * (self.hidden_size + self.intermediate_size) + self.kept_of_mixer(layer),
            Some(LayerBlock::Attention | LayerBlock::Recurrence) => self.hidden_size + self.kept_of_mixer(layer),
            Some(LayerBlock::Mlp | LayerBlock::Experts) => self.hidden_size + self.unit_width(layer),
        }
    }

    /// Returns the number of values of all matrices.
    pub fn values_of_matrices(&self) -> u128 {
        let (hidden, tokens) = (self.hidden_size as u128, self.vocab_size as u128);
        let mixer = |layer: usize| self.mixer_width(layer) as u128;
        let parts = self.wide_parts() as u128 + 1;
        let unit = |layer: usize| parts * self.unit_width(layer) as u128;
        let d = |m: &Mixture| m.latent.unwrap_or(self.hidden_size) as u128;
        let of_experts = |m: &Mixture| m.experts as u128 * (hidden + parts * m.width as u128 * d(m));
        let experts = self.mixture.as_ref().map_or(0, |m| of_experts(m) + 2 * hidden * m.latent.unwrap_or(0) as u128);
        let of = |has: bool, width: u128| if has { width } else { 0 };
        let sparse = |layer: usize| self.mixture.as_ref().is_some_and(|m| m.sparse[layer]);
        let second = self.latent.map_or(0, |latent| latent.values_of_second() as u128);
        let layer =
            |layer: usize| second + hidden * (mixer(layer) + of(self.has_unit(layer), unit(layer))) + of(sparse(layer), experts);
        let tables = hidden * tokens * if self.tied { 1 } else { 2 } + self.values_of_layer_inputs();
        tables + (0..self.layers).map(layer).sum::<u128>()
    }

    /// Returns the number of values of experts' matrices, without routers.
    pub fn values_of_experts(&self) -> u128 {
        let of_layer = |mixture: &Mixture| {
            ((self.wide_parts() + 1) * mixture.experts * mixture.width) as u128
                * mixture.latent.unwrap_or(self.hidden_size) as u128
        };
        let sparse = |mixture: &Mixture| mixture.sparse.iter().filter(|sparse| **sparse).count() as u128;
        self.mixture.as_ref().map_or(0, |mixture| sparse(mixture) * of_layer(mixture))
    }
}
