//! Chooses how sums are computed, when the program runs.

#[cfg(target_arch = "x86_64")]
use crate::processor::{Features, features};

/// How sums are computed.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Amx,
    Avx512,
}

/// Returns the processor's fastest kernel, if it has one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn kernel() -> Option<Kernel> {
    match features() {
        Features::Amx => Some(Kernel::Amx),
        Features::Avx512Bf16 => Some(Kernel::Avx512),
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
