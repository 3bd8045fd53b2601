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
    /// 16 bits with the range of 32.
    Bf16,
    /// 8 bits, in blocks of 32 with a scale.
    #[serde(rename = "q8_0")]
    Q8,
}

impl GgufPrecision {
    /// Returns its name in ggml and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8_0",
        }
    }

    /// Returns its number among the tensor types (`ggml_type`).
    pub(super) fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns the number of a file that mostly uses it (`llama_ftype`).
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the bytes of this many values.
    pub(super) fn bytes(self, values: u64) -> u64 {
        match self {
            Self::F32 => 4 * values,
            Self::F16 | Self::Bf16 => 2 * values,
            Self::Q8 => values / BLOCK as u64 * (BLOCK as u64 + 2),
        }
    }
}

/// Number of values in a block of 8 bits, which share an f16 scale (`QK8_0` of ggml).
pub(super) const BLOCK: usize = 32;
