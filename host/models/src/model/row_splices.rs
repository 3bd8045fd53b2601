//! Joins rows of two passes for their gradient.

use super::layer::{GateUpActivations, LayerActivations};
use crate::ops;
use crate::ops::splice::Splice;
use candle_core::Tensor;

/// The source of each row: the prompts' pass or its continuation.
pub(super) struct RowSplices {
    /// All rows of the forest.
    pub(super) all: Splice,
    /// Rows that the last layer computes after its attention.
    pub(super) selected: Splice,
}

impl RowSplices {
    /// Joins the activations of the prompts' pass and of its continuation.
    pub(super) fn joined(&self, [known, new]: [LayerActivations; 2], last: bool) -> ops::Result<LayerActivations> {
        let all = |known: &Tensor, new: &Tensor| self.all.forward(known, new);
        // The continuation computed all rows of the last layer after its attention.
        let behind = |known: &Tensor, new: &Tensor| if last { Ok(new.clone()) } else { all(known, new) };
        let both = |known: &Option<Tensor>, new: &Option<Tensor>| {
            known.as_ref().zip(new.as_ref()).map(|(known, new)| behind(known, new)).transpose()
        };
        let wide = |known: &GateUpActivations, new: &GateUpActivations| {
            let (gate, up) = (behind(&known.gate, &new.gate)?, both(&known.up, &new.up)?);
            Ok::<_, ops::Error>(GateUpActivations { gate, up, share: both(&known.share, &new.share)? })
        };
        Ok(LayerActivations {
            input: all(&known.input, &new.input)?,
            mixed: known.mixed.joined(&new.mixed, &all)?,
            out: all(&known.out, &new.out)?,
            projected: both(&known.projected, &new.projected)?,
            middle: behind(&known.middle, &new.middle)?,
            unit: known.unit.as_ref().zip(new.unit.as_ref()).map(|(known, new)| wide(known, new)).transpose()?,
            experts: None,
            apart: None,
            lowered: both(&known.lowered, &new.lowered)?,
            end: known.end.as_ref().zip(new.end.as_ref()).map(|(known, new)| known.joined(new, behind)).transpose()?,
        })
    }
}
