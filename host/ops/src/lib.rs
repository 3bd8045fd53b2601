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
mod codes;
pub mod columns;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
mod dispatch;
pub mod dropout;
mod elementwise;
pub mod embedding;
mod error;
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
mod reduce;
pub mod rope;
mod rounding;
mod rows;
pub mod sampler;
mod shape;
mod simd;
mod slices;
pub mod splice;
pub mod squares;
mod stored;
pub mod support;
pub mod team;
mod tiles;
mod unpack;
mod view;

pub use bf16::supported as multiplies_bf16;
#[cfg(feature = "cuda")]
pub use cuda::decode;
pub use elementwise::{
    add_into, bounded_by, cast, copied, fill_zero, from_vec, mixed, on_host, plus_one, scaled, to_vec, zeros_like,
};
pub use error::{Error, Result};
pub use forest::{Forest, Segment};
pub use memory::{available_memory, keep_freed_memory, peak_memory};
pub use process::{limit_memory, limit_process};
pub use reading::read_tensor;
pub use reduce::{all_finite, checksum, sum_of_squares};
pub use rounding::{round_bf16, round_in_place, sum_bf16, widen_bf16};
pub use rows::{gather_rows, scatter_add_rows};
pub use simd::wide_registers;
pub use slices::write;
pub use stored::Matrix;
pub use team::on_pool;
pub use view::Precision;

use dispatch::on_device;
use shape::matrix_dims;
