//! The differentiable operations a decoder is made of, each as a forward and a backward
//! function over packed rows.
//!
//! candle supplies tensors, storage and devices; the arithmetic that training spends its time
//! in is here, because several of candle's layers have no gradient and its tape keeps every
//! activation until the loss is dropped. A backward function takes what its forward kept plus
//! the gradient of its output, **adds** parameter gradients into the tensors it is given, and
//! returns or adds the gradient of its input. Nothing here knows about models or algorithms.
//!
//! This is the only room with `unsafe` code: strided matrix products and disjoint parallel
//! writes.
//!
//! Shapes: `N` packed tokens, `D` hidden size, `H` query heads, `K` key/value heads, `C` head
//! size, `V` vocabulary, `M` selected rows.
#![allow(unsafe_code)]

pub mod adamw;
pub mod attention;
pub mod cached_attention;
mod cpu;
pub mod embedding;
pub mod forest;
mod gemm;
pub mod linear;
pub mod logprob;
pub mod low_rank;
pub mod machine;
mod math;
mod memory;
pub mod norm;
pub mod panels;
pub mod rope;
pub mod swiglu;

pub use cpu::{add_into, checksum, fill_zero, gather_rows, scatter_add_rows, sum_of_squares, to_vec, write};
pub use forest::{Forest, Segment};
pub use memory::{keep_freed_memory, peak_memory};

use candle_core::Tensor;

/// What an operation can fail with. Shapes are the callers' invariants, so that these point at
/// a bug or at a device that lacks an implementation, not at a user's mistake.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// candle refused (allocation, dtype, device).
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// An operation met a tensor it has no kernel for.
    #[error("{op}: needs a contiguous f32 tensor on the CPU, got {dtype:?} on {device}")]
    Unsupported {
        /// The operation or access that failed.
        op: &'static str,
        /// The tensor's element type.
        dtype: candle_core::DType,
        /// The tensor's device.
        device: String,
    },
    /// Two tensors don't fit together.
    #[error("{op}: {detail}")]
    Shape {
        /// The operation that was called.
        op: &'static str,
        /// What does not fit.
        detail: String,
    },
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Rows and columns of a tensor seen as a matrix over its last dimension.
fn matrix_dims(t: &Tensor) -> (usize, usize) {
    let dims = t.dims();
    let cols = dims.last().copied().unwrap_or(1);
    (t.elem_count() / cols.max(1), cols)
}
