//! The operations on an NVIDIA device: the same functions as on the CPU, over tensors in device memory.
//!
//! Kernels are written in `host/kernels/`, compiled to PTX by `build.rs`, and launched through [`Launch`];
//! products of matrices are cuBLAS's. Everything a device does is put on one stream, in order, and nothing
//! waits for it but what reads values back ([`to_vec`] and the like). Activations and weights are f32 or
//! bf16, all sums are formed in f32, and every sum in an order that follows from the sizes alone, so that
//! two runs give the same bits.

mod array;
pub(super) mod attention;
pub mod decode;
mod device;
mod elementwise;
mod gemm;
mod launch;
pub(super) mod linear;
pub(super) mod logprob;
pub(super) mod norm;
mod optimizer;
mod plan;
mod reduce;
pub(super) mod rope;
pub(super) mod rows;

pub(super) use array::{Kind, Uploaded};
pub(super) use device::{count, name, open, peak_memory};
pub(super) use elementwise::{
    add_into, cast, copy, fill_zero, from_vec, mixed, swiglu, swiglu_backward, to_vec, write, zeros_like,
};
pub(super) use optimizer::adamw;
pub(super) use plan::Plan;
pub(super) use reduce::{checksum, sum_of_squares};
