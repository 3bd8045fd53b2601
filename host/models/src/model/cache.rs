//! Caches of a text in all layers: keys and values, or the state of a recurrence.

use super::Result;
use super::mixer::other_kind;
use crate::ops::caches::{PromptCache, SequenceCache};
use crate::ops::convolution::ConvolutionState;
use crate::ops::recurrent_network::NetworkState;

/// Caches of a prompt, one per layer.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    pub(super) layers: Vec<PrefixLayer>,
}

/// Cache of a prompt in one layer.
#[derive(Clone, Debug)]
pub(super) enum PrefixLayer {
    Attention(PromptCache),
    /// Nothing: the layer reads another's keys and values.
    Borrowing,
    Convolution(ConvolutionState),
    Network(NetworkState),
    /// Caches of attention and of a recurrence.
    SideBySide(Box<[Self; 2]>),
    /// Nothing: the layer has neither attention nor a recurrence.
    Absent,
}

/// Caches of a growing sequence, one per layer.
#[derive(Clone, Debug, Default)]
pub struct KvCache {
    pub(super) layers: Vec<CacheLayer>,
    /// Number of cached positions.
    pub(super) positions: usize,
}

/// Cache of a sequence in one layer.
#[derive(Clone, Debug)]
pub(super) enum CacheLayer {
    /// Keys and values of the sequence's own tokens, which follow the prompt's.
    Attention(SequenceCache),
    /// Nothing: the layer reads another's keys and values.
    Borrowing,
    /// The state after the sequence's last token; `None` before its first, where the prompt's state applies.
    Convolution(Option<ConvolutionState>),
    Network(Option<NetworkState>),
    /// Caches of attention and of a recurrence.
    SideBySide(Box<[Self; 2]>),
    Absent,
}

impl PrefixLayer {
    /// Returns the keys and values.
    pub(super) fn attention(&self) -> Result<&PromptCache> {
        match self {
            Self::Attention(cache) => Ok(cache),
            Self::SideBySide(both) => both[0].attention(),
            _ => Err(other_kind().into()),
        }
    }
}

impl CacheLayer {
    /// Returns the bytes of cached keys and values, and of states.
    fn bytes(&self) -> usize {
        match self {
            Self::Attention(cache) => cache.bytes(),
            Self::Convolution(state) => state.as_ref().map_or(0, ConvolutionState::bytes),
            Self::Network(state) => state.as_ref().map_or(0, NetworkState::bytes),
            Self::SideBySide(both) => both.iter().map(Self::bytes).sum(),
            Self::Borrowing | Self::Absent => 0,
        }
    }

    /// Returns the keys and values.
    pub(super) fn attention(&mut self) -> Result<&mut SequenceCache> {
        match self {
            Self::Attention(cache) => Ok(cache),
            Self::SideBySide(both) => both[0].attention(),
            _ => Err(other_kind().into()),
        }
    }

    /// Returns the state of a convolution. It starts as a copy of the prompt's.
    pub(super) fn convolution(&mut self, prompt: &PrefixLayer) -> Result<&mut ConvolutionState> {
        match (self, prompt) {
            (Self::Convolution(state), PrefixLayer::Convolution(prompt)) => Ok(state.get_or_insert_with(|| prompt.clone())),
            _ => Err(other_kind().into()),
        }
    }

    /// Returns the state of a gated delta network or a state space. It starts as a copy of the prompt's.
    pub(super) fn network(&mut self, prompt: &PrefixLayer) -> Result<&mut NetworkState> {
        match (self, prompt) {
            (Self::Network(state), PrefixLayer::Network(prompt)) => Ok(state.get_or_insert_with(|| prompt.clone())),
            (Self::SideBySide(both), PrefixLayer::SideBySide(prompt)) => both[1].network(&prompt[1]),
            _ => Err(other_kind().into()),
        }
    }
}

impl KvCache {
    /// Returns whether the cache can be cut to a prefix of its text. The state of a recurrent layer can't.
    #[must_use]
    pub fn can_be_cut(&self) -> bool {
        let cut = |layer: &CacheLayer| matches!(layer, CacheLayer::Attention(_) | CacheLayer::Borrowing | CacheLayer::Absent);
        self.layers.iter().all(cut)
    }

    /// Copies the first positions, with room for `room` positions in all. Returns `None` if a layer is recurrent, since its state can't be
    /// cut to these positions.
    #[must_use]
    pub fn prefix(&self, positions: usize, room: usize) -> Option<Self> {
        let layers = self.layers.iter().map(|layer| match layer {
            CacheLayer::Attention(cache) => Some(CacheLayer::Attention(cache.prefix(positions, room))),
            CacheLayer::Borrowing => Some(CacheLayer::Borrowing),
            CacheLayer::Absent => Some(CacheLayer::Absent),
            CacheLayer::Convolution(_) | CacheLayer::Network(_) | CacheLayer::SideBySide(_) => None,
        });
        Some(Self { layers: layers.collect::<Option<_>>()?, positions })
    }

    /// Returns the number of cached positions.
    pub fn len(&self) -> usize {
        self.positions
    }

    /// Returns whether no positions are cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the cached keys and values, and of states.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(CacheLayer::bytes).sum()
    }
}
