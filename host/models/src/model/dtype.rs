//! The precisions of stored weights.

use candle_core::DType;
use serde::Deserialize;

/// A precision of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightDtype {
    /// 32 bits.
    F32,
    /// 16 bits with the exponent range of f32 (bfloat16).
    Bf16,
    /// 16 bits, IEEE half precision.
    F16,
}

impl WeightDtype {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    pub(super) fn candle(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Returns the precision of a weight's values.
    pub(super) fn from_candle(dtype: DType) -> Self {
        match dtype {
            DType::BF16 => Self::Bf16,
            DType::F16 => Self::F16,
            _ => Self::F32,
        }
    }
}
