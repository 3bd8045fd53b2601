//! The precision in which a model's weights are held in memory.

use super::weights::SCALES;
use super::{Architecture, Result, WeightDtype, Weights};
use crate::ops;
use crate::ops::quantized::QuantizationScheme;
use candle_core::Tensor;
use std::collections::{HashMap, HashSet};

/// How frozen weights are held; trained ones become f32 in [`super::PolicyModel::at`]. Vectors are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightStorage {
    /// The precision of matrices; if none is given, the stored one of each.
    pub dtype: Option<WeightDtype>,
    /// The quantization of the layers' linear maps, if any. As in bitsandbytes, the embedding and the output matrix are not
    /// quantized.
    pub scheme: Option<QuantizationScheme>,
}

impl Default for WeightStorage {
    /// Everything in f32.
    fn default() -> Self {
        Self { dtype: Some(WeightDtype::F32), scheme: None }
    }
}

impl WeightStorage {
    /// Everything as stored.
    pub const AS_STORED: Self = Self { dtype: None, scheme: None };

    /// Returns the form of a model derived from this one, whose weights have more digits than this precision.
    pub(super) fn unrounded(self) -> Self {
        if self == Self::default() { self } else { Self::AS_STORED }
    }

    /// Reads the weights of a model. `take` returns a tensor of a name, a shape and a precision.
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
            // One weight at a time is held in full.
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
