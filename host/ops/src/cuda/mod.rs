//! Operations on an NVIDIA device: the CPU's functions, on tensors in device memory.
//!
//! Kernels are in `host/kernels/`, compiled by `build.rs`, and launched through [`launch::KernelLaunch`]; matrix products use cuBLAS. All
//! of a device's work runs on one stream, in order, and only reading values back waits for it ([`to_vec`] and the like). Activations and
//! weights are f32 or bf16. All sums are in f32, in an order that depends only on the sizes, so two runs are bit-identical.

pub(super) mod activation;
mod array;
pub(super) mod attention;
pub(super) mod columns;
pub mod decode;
mod device;
mod elementwise;
pub(super) mod experts;
mod gemm;
mod launch;
pub(super) mod linear;
pub(super) mod logprob;
pub(super) mod norm;
mod optimizer;
mod plan;
mod reduce;
mod restriction;
pub(super) mod rope;
pub(super) mod rows;

pub(super) use array::{DeviceBuffer, ElementKind};
pub(super) use device::{count, name, open, peak_memory};
pub(super) use elementwise::{
    add_into, bounded_by, cast, copy, fill_zero, from_vec, interpolate, scaled_and_added, to_vec, write, zeros_like,
};
pub(super) use optimizer::adamw;
pub(super) use plan::ForestPlan;
pub(super) use reduce::{checksum, sum_of_squares};
