//! Settings of a layer's attention (heads, windows, scale) and the tensors of its passes.

use super::math::tanh;
use super::view::Precision;
use candle_core::Tensor;

/// Sizes of the heads. Each key/value head serves `heads / kv_heads` consecutive query heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads, `H`.
    pub heads: usize,
    /// Key/value heads, `K`.
    pub kv_heads: usize,
    /// Size of a head, `C`.
    pub head_dim: usize,
}

impl Heads {
    pub(super) fn scale(self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    pub(super) fn per_kv(self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Settings of a layer's attention. Functions take this type itself instead of a generic convertible one, since a generic function would be
/// compiled in its caller's crate, without optimisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Numbers and size of the heads.
    pub heads: Heads,
    /// Number of newest positions that a token sees, including itself; all if `None` (sliding windows, Beltagy et al. 2020, arXiv
    /// 2004.05150).
    pub window: Option<usize>,
    /// Whether windows don't slide: texts are cut into chunks of the window's length, and a token sees only the earlier positions of its
    /// chunk.
    pub chunked: bool,
    /// Factor of the scores, usually the inverse square root of the head size.
    pub scale: f32,
    /// Bound that scores approach, `cap * tanh(score / cap)` (Gemma 2, arXiv 2408.00118); unbounded if `None`.
    pub cap: Option<f32>,
    /// Precision of the products on the CPU.
    pub precision: Precision,
}

impl From<Heads> for AttentionConfig {
    fn from(heads: Heads) -> Self {
        Self { heads, window: None, chunked: false, scale: heads.scale(), cap: None, precision: Precision::F32 }
    }
}

impl AttentionConfig {
    /// Returns the number of positions at the beginning that a token at this position does not see.
    pub(super) fn hidden(self, position: usize) -> usize {
        match self.window {
            Some(window) if self.chunked => position / window * window,
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        }
    }

    /// Applies the soft cap to scores, if there is one.
    #[inline(always)]
    pub(super) fn bound(self, scores: &mut [f32]) {
        if let Some(cap) = self.cap {
            for s in scores {
                *s = cap * tanh(*s / cap);
            }
        }
    }
}

/// Inputs and outputs of attention over a forest.
pub struct AttentionTensors<'a> {
    /// Queries, `[N, H * C]`.
    pub q: &'a Tensor,
    /// Keys, `[N, K * C]`.
    pub k: &'a Tensor,
    /// Values, `[N, K * C]`.
    pub v: &'a Tensor,
    /// The heads' outputs, `[N, H * C]`.
    pub out: &'a Tensor,
    /// Logarithms of the normalisers, `[N, H]`.
    pub log_sum: &'a Tensor,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_slide_and_chunks_do_not() {
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 2 };
        let hidden = |window, chunked| {
            let attention = AttentionConfig { window, chunked, ..heads.into() };
            [0, 3, 4, 5, 9].map(|position| attention.hidden(position))
        };
        assert_eq!(hidden(None, false), [0; 5]);
        assert_eq!(hidden(Some(4), false), [0, 0, 1, 2, 6]);
        assert_eq!(hidden(Some(4), true), [0, 0, 4, 4, 8]);
    }
}
