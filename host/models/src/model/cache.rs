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

impl Cache {
    /// Copies the first positions, with room for this many in all.
    #[must_use]
    pub fn prefix(&self, positions: usize, room: usize) -> Self {
        Self { layers: self.layers.iter().map(|layer| layer.prefix(positions, room)).collect() }
    }

    /// Forgets all but the first positions.
    pub fn truncate(&mut self, positions: usize) {
        self.layers.iter_mut().for_each(|layer| layer.truncate(positions));
    }

    /// Returns the number of its positions.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, SequenceCache::len)
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(SequenceCache::bytes).sum()
    }
}
