//! Keys and values of a text, in all layers.

use crate::ops::caches::{PromptCache, SequenceCache};

/// A prompt's keys and values, layer by layer.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    pub(super) layers: Vec<PromptCache>,
}

/// A growing sequence's own keys and values, layer by layer.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(super) layers: Vec<SequenceCache>,
}
