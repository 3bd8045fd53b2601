//! Bounds on a model's sizes.

/// Maximum `hidden_size`.
pub(super) const MOST_HIDDEN: usize = 1 << 20;

/// Maximum `intermediate_size`.
pub(super) const MOST_INTERMEDIATE: usize = 1 << 22;

/// Maximum `num_hidden_layers`.
pub(super) const MOST_LAYERS: usize = 10_000;

/// Maximum `max_position_embeddings`. Angles are computed from positions in f32, which does not represent every larger integer.
pub(super) const MOST_POSITIONS: usize = 1 << 24;
