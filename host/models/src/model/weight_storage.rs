//! Precision of a model's weights in memory.

use super::weights::SCALES;
use super::{Architecture, Result, WeightDtype, Weights};
use crate::ops;
use crate::ops::quantized::QuantizationScheme;
use candle_core::Tensor;
use std::collections::{HashMap, HashSet};

/// Storage of frozen weights. Trained ones become f32 in [`super::PolicyModel::at`]. Vectors are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightStorage {
    /// Precision of matrices; `None` for the stored one of each.
    pub dtype: Option<WeightDtype>,
    /// The quantization of the layers' linear maps, if any. As in bitsandbytes, the embedding and the output matrix are not
    /// quantized.
    pub scheme: Option<QuantizationScheme>,
}

impl Default for WeightStorage {
    /// Stores everything in f32.
    fn default() -> Self {
        Self { dtype: Some(WeightDtype::F32), scheme: None }
    }
}

impl WeightStorage {
    /// Keeps every weight in its stored precision.
    pub const AS_STORED: Self = Self { dtype: None, scheme: None };

    /// Returns the storage for a model derived from this one, whose weights need more digits than this precision has.
    pub(super) fn unrounded(self) -> Self {
        if self == Self::default() { self } else { Self::AS_STORED }
    }

    /// Reads the weights of a model. `take` returns the tensor of a name and shape in a precision.
    pub(super) fn read(
        self,
        a: &Architecture,
        mut take: impl FnMut(&str, &[usize], Option<WeightDtype>) -> Result<Tensor>,
    ) -> Result<Weights> {
        let Some(scheme) = self.scheme else { return Weights::build(a, |name, shape| take(name, shape, self.dtype)) };
        let (shapes, quantized): (HashMap<_, _>, HashSet<_>) =
            (a.parameters().into_iter().collect(), a.quantizable().into_iter().collect());
        let mut scales = None;
        Weights::build_in(a, self.scheme, |name, shape| {
            let missing = || ops::Error::Shape { op: "quantize", detail: format!("{name} {shape:?} without a weight") };
            if name.ends_with(SCALES) {
                return Ok(scales.take().ok_or_else(missing)?);
            }
            // Of the weights to be quantized, only one at a time is in memory in full.
            let weight = take(name, shapes.get(name).ok_or_else(missing)?, self.dtype)?;
            if !quantized.contains(name) {
                return Ok(weight);
            }
            let (codes, values) = scheme.quantize(&weight)?;
            scales = Some(values);
            Ok(codes)
        })
    }
}
