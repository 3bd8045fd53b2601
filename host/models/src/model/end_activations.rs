//! What the backward pass needs of the end of a layer behind its MLP.

use crate::ops;
use candle_core::{DType, Tensor};

/// Activations of the stage that reads a layer's own input.
pub(super) struct EndActivations {
    /// The layer's result before the stage.
    pub input: Tensor,
    /// Results of the first map.
    pub gate: Tensor,
    /// The layer's own input, which the activated gates multiply.
    pub given: Tensor,
    /// Results of the second map, which the norm reads.
    pub projected: Tensor,
}

impl EndActivations {
    /// Returns all parts.
    pub(super) fn parts(&self) -> [&Tensor; 4] {
        [&self.input, &self.gate, &self.given, &self.projected]
    }

    /// Converts all parts.
    pub(super) fn cast(self, dtype: DType) -> ops::Result<Self> {
        let to = |t: &Tensor| ops::cast(t, dtype);
        let Self { input, gate, given, projected } = self;
        Ok(Self { input: to(&input)?, gate: to(&gate)?, given: to(&given)?, projected: to(&projected)? })
    }

    /// Converts to f32 what the norm reads. Products and the activation function read the rest.
    pub(super) fn in_f32(self) -> ops::Result<Self> {
        Ok(Self { projected: ops::cast(&self.projected, DType::F32)?, ..self })
    }

    /// Joins the parts of two passes by their rows.
    pub(super) fn joined(&self, new: &Self, rows: impl Fn(&Tensor, &Tensor) -> ops::Result<Tensor>) -> ops::Result<Self> {
        Ok(Self {
            input: rows(&self.input, &new.input)?,
            gate: rows(&self.gate, &new.gate)?,
            given: rows(&self.given, &new.given)?,
            projected: rows(&self.projected, &new.projected)?,
        })
    }
}
