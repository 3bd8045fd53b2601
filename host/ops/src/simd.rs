//! Compiles loops for the processor that runs them. The binary itself only requires what every processor of its family has, so it
//! starts anywhere.

/// Runs an expression compiled for this processor's widest vector registers.
///
/// It is compiled once per register width. So it should only be the loops themselves, inside a thread's task, and what they call
/// should be inlined. Results don't depend on the registers: the order of operations stays as written, and `mul_add` rounds once
/// everywhere.
macro_rules! wide {
    ($work:expr) => {
        super::simd::run(
            #[inline(always)]
            || $work,
        )
    };
}
pub(super) use wide;

/// See [`wide`].
#[inline(always)]
pub(super) fn run<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: the processor has the features that this is compiled for.
        Level::Avx512 => return unsafe { avx512(work) },
        Level::Avx2 => return unsafe { avx2(work) },
        Level::Baseline => {}
    }
    work()
}

/// Returns whether the processor has the vector registers that the operations are optimised for. Without them, results are the
/// same but slower.
#[inline]
pub fn wide_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return !matches!(level(), Level::Baseline);
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// The vector registers of an x86-64 processor.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) enum Level {
    Baseline,
    Avx2,
    Avx512,
}

/// Returns the processor's level. The standard library detects it once and caches the answer.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn level() -> Level {
    use std::arch::is_x86_feature_detected as has;
    if has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512dq") {
        Level::Avx512
    } else if has!("avx2") && has!("fma") {
        Level::Avx2
    } else {
        Level::Baseline
    }
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
