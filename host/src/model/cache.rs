//! Keys and values of a text in all layers.

use crate::ops::cached_attention::KeyValues;

/// Keys and values of consecutive tokens, layer by layer.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(super) layers: Vec<KeyValues>,
}

impl Cache {
    /// An empty cache for a decoder of `layers` layers.
    pub(super) fn new(layers: usize) -> Self {
        Self { layers: vec![KeyValues::default(); layers] }
    }
}
