//! How a layer attends: its heads, how far back they see, and what its passes hand each other.

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

/// How a layer attends. Functions take this type itself, not something convertible to it: a generic function would be compiled in
/// its caller's crate, without optimisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Sizes of its heads.
    pub heads: Heads,
    /// Number of newest positions that a token sees, including itself; all if `None` (sliding windows, Beltagy et al. 2020, arXiv
    /// 2004.05150).
    pub window: Option<usize>,
    /// Factor of the scores, usually the inverse square root of the head size.
    pub scale: f32,
    /// Bound that scores approach, `cap * tanh(score / cap)` (Gemma 2, arXiv 2408.00118); unbounded if `None`.
    pub cap: Option<f32>,
    /// Precision of the products on the CPU.
    pub precision: Precision,
}

impl From<Heads> for Attention {
    fn from(heads: Heads) -> Self {
        Self { heads, window: None, scale: heads.scale(), cap: None, precision: Precision::F32 }
    }
}

impl Attention {
    /// Returns how many of the first positions a token at this position does not see.
    pub(super) fn hidden(self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Bounds scores, if they are bounded.
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
pub struct Kept<'a> {
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
