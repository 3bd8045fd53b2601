//! What is kept of a text in all layers: keys and values, or the state of a recurrence.

use super::Result;
use super::mixer::other_kind;
use crate::ops::caches::{PromptCache, SequenceCache};
use crate::ops::convolution::ConvolutionState;
use crate::ops::gated_delta::DeltaState;

/// What a prompt's layers keep, layer by layer.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    pub(super) layers: Vec<PrefixLayer>,
}

/// What a layer keeps of a prompt.
#[derive(Clone, Debug)]
pub(super) enum PrefixLayer {
    Attention(PromptCache),
    Convolution(ConvolutionState),
    Network(DeltaState),
}

/// What a growing sequence's layers keep, layer by layer.
#[derive(Clone, Debug, Default)]
pub struct KvCache {
    pub(super) layers: Vec<CacheLayer>,
}

/// What a layer keeps of a sequence.
#[derive(Clone, Debug)]
pub(super) enum CacheLayer {
    /// Its own keys and values, which follow the prompt's.
    Attention(SequenceCache),
    /// The state after its last token; none before the first, where it is the prompt's.
    Convolution(Option<ConvolutionState>),
    Network(Option<DeltaState>),
}

impl PrefixLayer {
    /// Returns the keys and values.
    pub(super) fn attention(&self) -> Result<&PromptCache> {
        match self {
            Self::Attention(cache) => Ok(cache),
            _ => Err(other_kind().into()),
        }
    }
}

impl CacheLayer {
    /// Returns the keys and values.
    pub(super) fn attention(&mut self) -> Result<&mut SequenceCache> {
        match self {
            Self::Attention(cache) => Ok(cache),
            _ => Err(other_kind().into()),
        }
    }

    /// Returns the state, which begins as that after the prompt.
    pub(super) fn convolution(&mut self, prompt: &PrefixLayer) -> Result<&mut ConvolutionState> {
        match (self, prompt) {
            (Self::Convolution(state), PrefixLayer::Convolution(prompt)) => Ok(state.get_or_insert_with(|| prompt.clone())),
            _ => Err(other_kind().into()),
        }
    }

    /// Returns the state of a gated delta network, which begins as that after the prompt.
    pub(super) fn network(&mut self, prompt: &PrefixLayer) -> Result<&mut DeltaState> {
        match (self, prompt) {
            (Self::Network(state), PrefixLayer::Network(prompt)) => Ok(state.get_or_insert_with(|| prompt.clone())),
            _ => Err(other_kind().into()),
        }
    }
}

impl KvCache {
    /// Copies the first positions, with room for this many in all. None if a layer carries a state, which has no part that belongs to
    /// these positions.
    #[must_use]
    pub fn prefix(&self, positions: usize, room: usize) -> Option<Self> {
        let layers = self.layers.iter().map(|layer| match layer {
            CacheLayer::Attention(cache) => Some(CacheLayer::Attention(cache.prefix(positions, room))),
            CacheLayer::Convolution(_) | CacheLayer::Network(_) => None,
        });
        Some(Self { layers: layers.collect::<Option<_>>()? })
    }

    /// Returns the number of positions that it has keys and values of.
    pub fn len(&self) -> usize {
        self.attending().map(SequenceCache::len).next().unwrap_or_default()
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        self.attending().map(SequenceCache::bytes).sum()
    }

    /// Returns what it has of the layers that attend.
    fn attending(&self) -> impl Iterator<Item = &SequenceCache> {
        self.layers.iter().filter_map(|layer| match layer {
            CacheLayer::Attention(cache) => Some(cache),
            CacheLayer::Convolution(_) | CacheLayer::Network(_) => None,
        })
    }
}
