//! The matrices of a low-rank adapter.

use super::view::Precision;
use candle_core::Tensor;

/// The two matrices and the factor of their product.
#[derive(Clone, Copy)]
pub struct LowRankAdapter<'a> {
    /// `[r, in]`
    pub a: &'a Tensor,
    /// `[out, r]`
    pub b: &'a Tensor,
    /// `s`
    pub scale: f32,
    /// Of the products on the CPU, except in [`LowRankAdapter::merged`].
    pub precision: Precision,
}

/// Where gradients of the two matrices are added.
#[derive(Clone, Copy)]
pub struct LowRankGradient<'a> {
    /// `[r, in]`
    pub a: &'a Tensor,
    /// `[out, r]`
    pub b: &'a Tensor,
}
