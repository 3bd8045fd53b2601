//! Chooses the kernel for sums of blocks at run time.

#[cfg(target_arch = "x86_64")]
use crate::processor::{CpuFeatures, features};

/// A kernel for sums of blocks.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bf16Kernel {
    Amx,
    Avx512,
}

/// Returns the processor's fastest kernel, or `None` if it has none.
#[cfg(target_arch = "x86_64")]
pub(crate) fn kernel() -> Option<Bf16Kernel> {
    match features() {
        CpuFeatures::Amx => Some(Bf16Kernel::Amx),
        CpuFeatures::Avx512Bf16 => Some(Bf16Kernel::Avx512),
        _ => None,
    }
}

/// Returns whether the processor multiplies bf16 faster than f32.
pub fn supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    return kernel().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}
