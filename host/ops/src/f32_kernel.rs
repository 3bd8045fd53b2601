//! The kernel of matrix products in f32, from the `gemm` crates.
//!
//! The crates detect the processor themselves and can't be restricted. Under a cap ([`super::processor`]), this module instantiates the
//! kernel that they would choose on a processor with only these features.

use gemm_common::Parallelism;

/// A kernel: `out = alpha * out + beta * left right`, column by column. Its arguments are the sizes `m`, `n` and `k`; the pointer and the
/// column and row strides of `out`, whether it is read, and those of `left` and `right`; `alpha` and `beta`; three flags about complex
/// numbers; and the threads.
pub(super) type F32Kernel = unsafe fn(
    usize,
    usize,
    usize,
    *mut f32,
    isize,
    isize,
    bool,
    *const f32,
    isize,
    isize,
    *const f32,
    isize,
    isize,
    f32,
    f32,
    bool,
    bool,
    bool,
    Parallelism,
);

/// Returns the fastest kernel that the processor's features allow.
#[cfg(target_arch = "x86_64")]
pub(super) fn kernel() -> F32Kernel {
    use super::processor::{CpuFeatures, features};
    match features() {
        CpuFeatures::Baseline if CpuFeatures::detect() > CpuFeatures::Baseline => capped::scalar,
        CpuFeatures::Avx2 if CpuFeatures::detect() > CpuFeatures::Avx2 => capped::fma,
        _ => gemm_f32::gemm::f32::get_gemm_fn(),
    }
}

/// Returns the fastest kernel.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn kernel() -> F32Kernel {
    gemm_f32::gemm::f32::get_gemm_fn()
}

#[cfg(target_arch = "x86_64")]
mod capped {
    #![allow(clippy::too_many_arguments, reason = "they are a kernel's")]

    use gemm_common::Parallelism;
    use gemm_common::gemm::gemm_basic_generic;
    use gemm_common::simd::{MixedSimd, Scalar, V3};
    use gemm_f32::microkernel;

    /// Defines a [`super::F32Kernel`] of vectors of `$width` values from the crate's microkernels.
    macro_rules! kernel {
        ($name:ident, $width:literal, $simd:ty) => {
            pub(in super::super) unsafe fn $name(
                m: usize,
                n: usize,
                k: usize,
                out: *mut f32,
                out_cs: isize,
                out_rs: isize,
                read: bool,
                left: *const f32,
                left_cs: isize,
                left_rs: isize,
                right: *const f32,
                right_cs: isize,
                right_rs: isize,
                alpha: f32,
                beta: f32,
                _: bool,
                _: bool,
                _: bool,
                parallelism: Parallelism,
            ) {
                use microkernel::$name::f32::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
                let simd = <$simd as MixedSimd<f32, f32, f32, f32>>::try_new().expect("the processor has what the cap names");
                let mul_add = |a: f32, b: f32, c: f32| a * b + c;
                // SAFETY: the caller guarantees the matrices.
                unsafe {
                    gemm_basic_generic::<$simd, f32, $width, { MR_DIV_N * $width }, NR, MR_DIV_N, H_M, H_N>(
                        simd,
                        m,
                        n,
                        k,
                        out,
                        out_cs,
                        out_rs,
                        read,
                        left,
                        left_cs,
                        left_rs,
                        right,
                        right_cs,
                        right_rs,
                        alpha,
                        beta,
                        false,
                        false,
                        false,
                        mul_add,
                        &UKR,
                        &H_UKR,
                        false,
                        parallelism,
                    );
                }
            }
        };
    }

    kernel!(scalar, 1, Scalar);
    kernel!(fma, 8, V3);
}
