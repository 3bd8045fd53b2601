//! Compiles loops for the processor that runs them. The binary itself only requires the baseline of its architecture, so it starts on any
//! processor.

#[cfg(target_arch = "x86_64")]
use super::processor::{CpuFeatures, features};

/// Runs an expression compiled for this processor's widest vector registers.
///
/// The expression is compiled once per register width. So it should contain only loops, inside a thread's task, and functions that it calls
/// should be inlined. Results don't depend on the registers: the order of operations is as written, and `mul_add` rounds once everywhere.
macro_rules! wide {
    ($work:expr) => {
        super::simd::run(
            #[inline(always)]
            || $work,
        )
    };
}
pub(super) use wide;

/// Runs `work` compiled for the widest registers that the processor has; see [`wide`].
#[inline(always)]
pub(super) fn run<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    match features() {
        CpuFeatures::Baseline => {}
        // SAFETY: the processor has the features that this is compiled for.
        CpuFeatures::Avx2 => return unsafe { avx2(work) },
        // SAFETY: as above.
        _ => return unsafe { avx512(work) },
    }
    work()
}

/// Returns whether the processor has the vector registers that the operations are optimised for. Without them, results are the same but
/// take longer.
#[inline]
pub fn wide_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return features() != CpuFeatures::Baseline;
    #[cfg(not(target_arch = "x86_64"))]
    true
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
fn avx512<T>(work: impl FnOnce() -> T) -> T {
    work()
}
