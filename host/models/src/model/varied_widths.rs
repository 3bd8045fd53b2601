//! Sizes of layers that differ from each other.

use super::Architecture;
use super::varied_layers::LayerInputSizes;
use crate::ops::attention::Heads;

impl Architecture {
    /// Returns the heads of a layer's attention.
    pub fn heads_of(&self, layer: usize) -> Heads {
        self.varied.as_ref().filter(|varied| varied.whole[layer]).map_or(self.heads, |varied| varied.whole_heads)
    }

    /// Returns the width of a layer's packed key or value heads.
    pub(super) fn kv_width_of(&self, layer: usize) -> usize {
        let Heads { kv_heads, head_dim, .. } = self.heads_of(layer);
        kv_heads * head_dim
    }

    /// Returns the size of the heads that a rotary embedding, by its index in `ropes`, rotates.
    pub(super) fn rotated_head_dim(&self, rope: usize) -> usize {
        self.varied.as_ref().filter(|_| rope == 0).map_or(self.heads.head_dim, |varied| varied.whole_heads.head_dim)
    }

    /// Returns the layer whose keys and values a layer reads, if they are not its own.
    pub fn key_source(&self, layer: usize) -> Option<usize> {
        self.varied.as_ref().and_then(|varied| varied.sources[layer])
    }

    /// Returns whether later layers read the keys and values of a layer.
    pub(super) fn is_key_source(&self, layer: usize) -> bool {
        self.varied.as_ref().is_some_and(|varied| varied.sources.contains(&Some(layer)))
    }

    /// Returns whether keys of a layer, before their norm, also serve as values.
    pub(super) fn values_are_keys(&self, layer: usize) -> bool {
        self.varied.as_ref().is_some_and(|varied| varied.keys_are_values && varied.whole[layer])
    }

    /// Returns the widths of the projections of a layer's queries, and of its keys and values if it has its own; `None` in families whose
    /// layers are alike.
    pub(super) fn varied_widths(&self, layer: usize) -> Option<Vec<usize>> {
        self.varied.as_ref()?;
        let Heads { heads, kv_heads, head_dim } = self.heads_of(layer);
        let keys = match (self.key_source(layer), self.values_are_keys(layer)) {
            (Some(_), _) => 0,
            (None, true) => 1,
            (None, false) => 2,
        };
        Some([vec![heads * head_dim], vec![kv_heads * head_dim; keys]].concat())
    }

    /// Returns the widths of the results of a layer's projections before attention or a recurrence.
    pub(super) fn product_widths(&self, layer: usize) -> Vec<usize> {
        let beside = self.side_by_side().map(|_| self.input_widths(true)).unwrap_or_default();
        self.varied_widths(layer).unwrap_or_else(|| [self.input_widths(self.is_recurrent(layer)), beside].concat())
    }

    /// Returns an upper bound on the widths of what differs between layers.
    pub(super) fn widest_of_varied(&self) -> usize {
        let of_layer = |layer: usize| {
            let own = self.product_widths(layer).into_iter().sum::<usize>();
            own.max(2 * self.unit_width(layer))
        };
        let inputs = self.layer_input_width().unwrap_or_default() * self.layers;
        (0..self.layers).map(of_layer).max().unwrap_or_default().max(inputs)
    }

    /// Returns the width of a token's cached keys in all layers together, which is also that of its values.
    pub fn cached_width(&self) -> usize {
        let has_own = |layer: &usize| self.attends(*layer) && self.key_source(*layer).is_none();
        (0..self.layers).filter(has_own).map(|layer| self.kv_width_of(layer)).sum()
    }

    /// Returns whether a tensor is one that published models have and transformers does not load: of keys and values in a layer that reads
    /// another's.
    pub(super) fn is_dropped(&self, name: &str) -> bool {
        let in_layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let reads = |number: &str| number.parse().is_ok_and(|layer| layer < self.layers && self.key_source(layer).is_some());
        let parts = ["self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm.", "self_attn.v_norm."];
        in_layer.is_some_and(|(number, part)| reads(number) && parts.iter().any(|own| part.starts_with(own)))
    }

    /// Returns the width of each layer's own embedding, if there is one.
    pub fn layer_input_width(&self) -> Option<usize> {
        self.varied.as_ref().and_then(|varied| varied.inputs).map(|inputs| inputs.width)
    }

    /// Returns the number of values of the matrices of layers' own embeddings.
    pub(super) fn values_of_layer_inputs(&self) -> u128 {
        let Some(LayerInputSizes { tokens, width }) = self.varied.as_ref().and_then(|varied| varied.inputs) else { return 0 };
        // In each layer two maps, and a part of the table and of the projection of the first layer's input.
        (self.layers * width) as u128 * (tokens + 3 * self.hidden_size) as u128
    }
}
