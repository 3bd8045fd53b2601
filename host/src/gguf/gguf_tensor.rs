//! A tensor of a GGUF file.

use super::GgufPrecision;
use candle_core::Tensor;

/// A tensor of the file.
pub(super) struct GgufTensor {
    pub name: String,
    /// Sizes, outermost first; the file has them in reverse order.
    pub shape: Vec<usize>,
    /// Values in file order. Often a view of a weight, which is made contiguous while it is written.
    pub values: Tensor,
    pub precision: GgufPrecision,
}

impl GgufTensor {
    /// Returns the number of values.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }

    /// Returns the size of the values in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.precision.bytes(self.elements())
    }
}
