//! Noise on the embeddings of texts in training (`neftune_noise_alpha`; NEFTune, Jain et al. 2023, arXiv 2310.05914). Generation, scoring
//! and evaluation add none.

use super::{Architecture, Family};
use crate::ops::dropout::mixed_bits;
use crate::ops::{self, Forest, noise};
use candle_core::Tensor;

/// Distinguishes the noise's key from those of layers' dropout.
const OF_EMBEDDINGS: u64 = u64::MAX;

/// Returns the factor that transformers applies to embeddings after adding the noise. Gemma's embedding applies its own before.
fn factor(architecture: &Architecture) -> f32 {
    match architecture.family {
        Family::Gemma2 | Family::Gemma3 | Family::Gemma4 | Family::Gemma4Unified => 1.0,
        _ => architecture.factors.embedding,
    }
}

/// The noise of a pass.
pub(super) struct EmbeddingNoise {
    key: u64,
    /// A number for each packed token, from which its noise is drawn.
    texts: Vec<u64>,
    /// The maximum magnitude of each token's noise.
    bounds: Vec<f32>,
}

impl EmbeddingNoise {
    /// Creates the noise of a pass over `forest`; `None` for an `alpha` of zero. Each value's noise is uniform within `alpha / sqrt(L D)`,
    /// for a text of `L` tokens and embeddings of `D` values. A shared prefix of several texts has the noise of the longest text.
    pub(super) fn new(alpha: f64, key: u64, forest: &Forest, architecture: &Architecture) -> Option<Self> {
        if alpha <= 0.0 {
            return None;
        }
        let (width, factor) = (architecture.hidden_size as f64, f64::from(factor(architecture)));
        let bound = |length: usize| (factor * alpha / (length as f64 * width).sqrt()) as f32;
        let bounds = forest.lengths_of_texts().into_iter().map(bound).collect();
        Some(Self { key: mixed_bits(key ^ mixed_bits(OF_EMBEDDINGS)), texts: forest.texts(), bounds })
    }

    /// Adds the noise to the input of the first layer.
    pub(super) fn add_to(&self, x: &Tensor) -> ops::Result<()> {
        noise::UniformNoise { rows: &self.texts, bounds: &self.bounds, key: self.key }.add_to(x)
    }
}
