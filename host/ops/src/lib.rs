//! Differentiable operations of a decoder, each as a forward and a backward function over packed rows.
//!
//! candle provides tensors, storage and devices. The arithmetic that dominates training is implemented in this crate, because several of
//! candle's layers have no gradient and its tape keeps every activation until the loss is dropped. A backward function takes what its
//! forward function stored plus the gradient of its output, **adds** parameter gradients into the given tensors, and returns or adds the
//! gradient of its input. This crate knows nothing about models or algorithms.
//!
//! `unsafe` code is confined to this crate: strided matrix products, disjoint parallel writes, device kernels and system calls. Each
//! function takes tensors on the CPU or a device; with the feature `cuda`, the latter go to its counterpart in `cuda/`.
//!
//! # Layers
//!
//! A file imports only from its own layer and those before it, and no two files import each other, directly or indirectly.
//! `tests/e2e/repository/layers.rs` lists the files of each layer and enforces this.
//!
//! 1. The machine: the process and its memory (`system/`), processor features, a team of spinning threads.
//! 2. Tensors: reading and writing them, views of matrices, stored precisions, and inputs of operations (a forest, heads, the
//!    matrices of an adapter). Their counterparts on a device are `cuda/array.rs` and the files that copy and convert.
//! 3. Products: of matrices in f32 (`gemm.rs`), bf16 (`bf16/`) and 8 bits, of few rows, and in tiles of the logits.
//! 4. Operations, forward and backward, with counterparts in `cuda/`; optimizers.
//! 5. Generation: caches, rearranged weights, sampling, and a device's session (`cuda/decode/`).
//! 6. Measurements of a machine with these operations.
//!
//! Shapes: `N` packed tokens, `D` hidden size, `H` query heads, `K` key/value heads, `C` head size, `V` vocabulary, `M` selected
//! rows.
#![allow(unsafe_code)]

pub mod activation;
pub mod adamw;
pub mod adamw_8bit;
mod adapter;
pub mod attention;
mod bf16;
pub mod cached_attention;
pub mod caches;
mod capability;
mod codes;
pub mod columns;
pub mod convolution;
#[cfg(feature = "cuda")]
mod cuda;
mod delta_backward;
mod delta_rule;
pub mod device;
mod dispatch;
pub mod divergence;
pub mod dropout;
mod elementwise;
pub mod embedding;
mod error;
mod expert_biases;
pub mod experts;
mod f32_kernel;
pub mod forest;
mod gated_delta;
mod gemm;
mod heads;
mod int8;
mod latent_heads;
pub mod layer_norm;
pub mod linear;
mod lines;
pub mod logprob;
pub mod low_rank;
pub mod machine;
pub mod magnitude;
mod math;
mod mean_rows;
pub mod mxfp4;
mod network_kind;
pub mod noise;
pub mod norm;
pub mod optimizers;
pub mod output_gate;
pub mod panels;
pub mod processor;
pub mod quantized;
mod reading;
pub mod recurrent_network;
mod reduce;
mod residency;
pub mod rope;
mod rounding;
mod routes;
mod rows;
pub mod sampler;
mod shape;
mod simd;
pub mod sinks;
mod slices;
pub mod splice;
pub mod squares;
mod state_space;
pub mod support;
mod system;
pub mod team;
#[cfg(test)]
mod testing;
mod tiles;
mod token_stats;
pub mod top_divergence;
mod unpack;
mod update;
mod view;
mod weight_storage;
mod writing;

pub use bf16::supported as multiplies_bf16;
pub use capability::{Capability, LARGEST_HEAD};
#[cfg(feature = "cuda")]
pub use cuda::decode;
pub use delta_rule::DeltaHeads;
pub use elementwise::{
    add_into, bounded_by, cast, copied, fill_zero, from_vec, interpolate, on_host, plus_one, scaled, to_vec, zeros_like,
};
pub use error::{Error, Result};
pub use forest::{Forest, Segment};
pub use gated_delta::GatedDelta;
pub use latent_heads::LatentHeads;
pub use network_kind::NetworkGradient;
pub use reading::read_tensor;
pub use reduce::{all_finite, checksum, sum_of_squares};
pub use residency::{allocate_values, free_values, has_values, write_bytes_of};
pub use rounding::{round_bf16, round_in_place, sum_bf16, widen_bf16};
pub use rows::{gather_rows, scale_rows, scatter_add_rows, sigmoids};
pub use simd::wide_registers;
pub use slices::write;
pub use state_space::{NormPlace, StateSpace};
pub use system::{
    available_memory, bounded, in_own_group, keep_freed_memory, kill_group, limit_memory, limit_process, peak_memory,
    return_freed_memory,
};
#[cfg(unix)]
pub use system::{has_ended, readable_within};
pub use team::on_pool;
pub use view::Precision;
pub use weight_storage::WeightMatrix;
pub use writing::write_tensor;

use dispatch::on_device;
use shape::matrix_dims;
