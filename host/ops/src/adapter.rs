//! The matrices of a low-rank adapter.

use super::view::Precision;
use candle_core::Tensor;

/// The two matrices of an adapter and the factor of their product.
#[derive(Clone, Copy)]
pub struct LowRankAdapter<'a> {
    /// Matrix `A`, `[r, in]`.
    pub a: &'a Tensor,
    /// Matrix `B`, `[out, r]`.
    pub b: &'a Tensor,
    /// Factor `s` of the product.
    pub scale: f32,
    /// Precision of the products on the CPU, except in [`LowRankAdapter::merged`].
    pub precision: Precision,
}

/// Tensors to which the gradients of the two matrices are added.
#[derive(Clone, Copy)]
pub struct LowRankGradient<'a> {
    /// Gradient of `A`, `[r, in]`.
    pub a: &'a Tensor,
    /// Gradient of `B`, `[out, r]`.
    pub b: &'a Tensor,
}
