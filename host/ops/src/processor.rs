//! Detects the processor's features, and caps them for tests.
//!
//! Every kernel is chosen by these features at run time. The environment variable [`CAP`] lowers the detected set, so that any machine can
//! test the kernels of older processors. It never raises it.

use std::fmt;
use std::sync::OnceLock;

/// Environment variable that caps the detected features, one of [`CpuFeatures::NAMES`].
pub const CAP: &str = "RLHOST_CPU_FEATURES";

/// Instruction sets for which kernels exist. Each one includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuFeatures {
    /// Features of every processor of the architecture.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 with the F, BW, DQ and VL extensions.
    Avx512,
    /// AVX-512 with VNNI, which multiplies 8-bit integers.
    Avx512Vnni,
    /// AVX-512 with BF16, which multiplies pairs in bf16.
    Avx512Bf16,
    /// AMX tiles in bf16.
    Amx,
}

impl CpuFeatures {
    /// Valid values of [`CAP`], each with its set.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("none", Self::Baseline),
        ("avx2", Self::Avx2),
        ("avx512", Self::Avx512),
        ("avx512vnni", Self::Avx512Vnni),
        ("avx512bf16", Self::Avx512Bf16),
        ("amx", Self::Amx),
    ];

    /// Returns the name of the set.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, features)| *features == self).map_or("none", |(name, _)| name)
    }

    /// Parses a value of [`CAP`].
    ///
    /// # Errors
    /// If it is not one of [`Self::NAMES`]; the message lists them.
    pub fn parse(name: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        let names = Self::NAMES.map(|(name, _)| name).join(", ");
        known.map(|(_, features)| *features).ok_or_else(|| format!("{CAP} is {name:?}; it can be one of: {names}"))
    }

    /// Returns the cap that the environment sets, if any.
    ///
    /// # Errors
    /// If its value is not one of [`Self::NAMES`].
    pub fn cap() -> Result<Option<Self>, String> {
        std::env::var_os(CAP).filter(|cap| !cap.is_empty()).map(|cap| Self::parse(&cap.to_string_lossy())).transpose()
    }

    /// Detects the features of the processor and the system.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if !(has!("avx2") && has!("fma")) {
                Self::Baseline
            } else if !(has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512dq")) {
                Self::Avx2
            } else if !has!("avx512vnni") {
                Self::Avx512
            } else if !has!("avx512bf16") {
                Self::Avx512Vnni
            } else if !has_tiles() {
                Self::Avx512Bf16
            } else {
                Self::Amx
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Baseline
    }
}

/// Requests permission to use AMX tiles from the system. Returns whether the processor has them in bf16 and this process may use them.
#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    /// Bits of EDX in the processor's leaf 7.
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
    features & (BF16 | TILE) == (BF16 | TILE) && request_tiles()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this request changes nothing but what the process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems are not known to need permission.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn request_tiles() -> bool {
    false
}

impl fmt::Display for CpuFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the features that kernels are chosen by: the detected ones, up to the cap. A cap that can't be parsed is ignored, since the
/// program rejects it at startup.
#[inline]
#[must_use]
pub fn features() -> CpuFeatures {
    static FEATURES: OnceLock<CpuFeatures> = OnceLock::new();
    *FEATURES.get_or_init(|| {
        let cap = CpuFeatures::cap().ok().flatten();
        CpuFeatures::detect().min(cap.unwrap_or(CpuFeatures::Amx))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_named_or_refused_with_the_names_there_are() {
        for (name, features) in CpuFeatures::NAMES {
            assert_eq!(CpuFeatures::parse(name), Ok(features));
        }
        let refused = CpuFeatures::parse("avx1024").unwrap_err();
        assert!(refused.contains("RLHOST_CPU_FEATURES is \"avx1024\"") && refused.contains("none, avx2"), "{refused}");
    }

    #[test]
    fn a_cap_lowers_what_is_detected_and_never_raises_it() {
        let cap = CpuFeatures::cap().unwrap();
        assert_eq!(features(), CpuFeatures::detect().min(cap.unwrap_or(CpuFeatures::Amx)));
        eprintln!("detected: {}, used: {}", CpuFeatures::detect(), features());
    }
}
