//! The precisions of a GGUF file's tensors.

use serde::Deserialize;

/// A precision of tensors in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GgufPrecision {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// 16 bits with the exponent range of f32.
    Bf16,
    /// 8 bits, in blocks of 32 with a scale.
    #[serde(rename = "q8_0")]
    Q8,
}

impl GgufPrecision {
    /// Returns the precision's name in ggml and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8_0",
        }
    }

    /// Returns the precision's number among the tensor types (`ggml_type`).
    pub(super) fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns the type number of a file that mostly uses this precision (`llama_ftype`).
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the size of this many values in bytes.
    pub(super) fn bytes(self, values: u64) -> u64 {
        match self {
            Self::F32 => 4 * values,
            Self::F16 | Self::Bf16 => 2 * values,
            Self::Q8 => values / BLOCK as u64 * (BLOCK as u64 + 2),
        }
    }
}

/// Number of values in an 8-bit block, which share an f16 scale (`QK8_0` of ggml).
pub(super) const BLOCK: usize = 32;
