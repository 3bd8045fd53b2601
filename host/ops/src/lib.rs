//! The differentiable operations of a decoder, each as a forward and a backward function over packed rows.
//!
//! candle provides tensors, storage and devices. The arithmetic that dominates training is here, because several of candle's
//! layers have no gradient and its tape keeps every activation until the loss is dropped. A backward function takes what its
//! forward kept plus the gradient of its output, **adds** parameter gradients into the given tensors, and returns or adds the
//! gradient of its input. This crate knows nothing about models or algorithms.
//!
//! `unsafe` code is confined to this crate: strided matrix products, disjoint parallel writes, device kernels and system calls.
//! Each function takes tensors on the CPU or a device; with the feature `cuda`, the latter go to its counterpart in `cuda/`.
//!
//! Shapes: `N` packed tokens, `D` hidden size, `H` query heads, `K` key/value heads, `C` head size, `V` vocabulary, `M` selected
//! rows.
#![allow(unsafe_code)]

pub mod activation;
pub mod adamw;
pub mod adamw_8bit;
pub mod attention;
mod bf16;
pub mod bounded;
pub mod cached_attention;
pub mod caches;
pub mod columns;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
pub mod dropout;
pub mod embedding;
pub mod experts;
mod f32_kernel;
pub mod forest;
mod gemm;
mod int8;
pub mod layer_norm;
pub mod linear;
mod lines;
pub mod logprob;
pub mod low_rank;
pub mod machine;
pub mod magnitude;
mod math;
mod mean_rows;
mod memory;
pub mod noise;
pub mod norm;
pub mod optimizers;
pub mod panels;
mod process;
pub mod processor;
pub mod quantized;
mod reading;
pub mod rope;
mod rounding;
pub mod sampler;
mod simd;
pub mod splice;
pub mod squares;
mod stored;
pub mod support;
pub mod team;
mod tiles;
mod unpack;
pub mod words;

pub use bf16::supported as multiplies_bf16;
pub use cpu::{
    add_into, all_finite, bounded_by, cast, checksum, copied, fill_zero, from_vec, gather_rows, mixed, on_host, on_pool,
    plus_one, scaled, scatter_add_rows, sum_of_squares, to_vec, write, zeros_like,
};
#[cfg(feature = "cuda")]
pub use cuda::decode;
pub use forest::{Forest, Segment};
pub use gemm::Precision;
pub use memory::{available_memory, keep_freed_memory, peak_memory};
pub use process::{limit_memory, limit_process};
pub use reading::read_tensor;
pub use rounding::{round_bf16, round_in_place, sum_bf16, widen_bf16};
pub use simd::wide_registers;
pub use stored::Matrix;

use candle_core::Tensor;

/// Errors of operations. Shapes are the callers' invariants, so all but [`Error::OutOfMemory`] and [`Error::Device`] indicate a bug or a
/// device that lacks an implementation, not a user's mistake.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of candle (allocation, dtype, device).
    #[error(transparent)]
    Candle(candle_core::Error),
    /// The device is out of memory.
    #[error(
        "the device's memory is full; lower per_device_train_batch_size, max_tokens_per_microbatch, max_completion_length, \
         max_num_seqs or, with an environment, max_episode_tokens, or set gradient_checkpointing"
    )]
    OutOfMemory,
    /// A device can't be opened.
    #[error("{0}")]
    Device(String),
    /// An operation has no kernel for a tensor.
    #[error("{op}: no kernel for a {dtype:?} tensor with this layout on {device}")]
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
        /// The operation.
        op: &'static str,
        /// What does not fit.
        detail: String,
    },
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        // Errors of the driver come as text.
        let said = error.to_string();
        let full = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"].iter().any(|status| said.contains(status));
        if full { Self::OutOfMemory } else { Self::Candle(error) }
    }
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the device's result of an operation if the tensor is on a device.
macro_rules! on_device {
    ($tensor:expr, $call:expr) => {
        #[cfg(feature = "cuda")]
        {
            if $tensor.device().is_cuda() {
                return $call;
            }
        }
    };
}
use on_device;

/// Returns the rows and columns of a tensor seen as a matrix over its last dimension.
fn matrix_dims(t: &Tensor) -> (usize, usize) {
    let dims = t.dims();
    let cols = dims.last().copied().unwrap_or(1);
    (t.elem_count() / cols.max(1), cols)
}
