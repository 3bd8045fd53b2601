//! Rows of two passes, put together for their gradient.

use super::layer::{GateUpActivations, LayerActivations};
use crate::ops;
use crate::ops::splice::Splice;
use candle_core::Tensor;

/// Where rows come from: from the prompts' pass or from the one that continues it.
pub(super) struct RowSplices {
    /// All rows of the forest.
    pub(super) all: Splice,
    /// Those that the last layer computes after its attention.
    pub(super) selected: Splice,
}

impl RowSplices {
    /// Returns all that a layer's gradient needs, from what the prompts' pass and its continuation kept.
    pub(super) fn joined(&self, [known, new]: [LayerActivations; 2], last: bool) -> ops::Result<LayerActivations> {
        let all = |known: &Tensor, new: &Tensor| self.all.forward(known, new);
        // After its attention, the last layer was computed for all of its rows by the continuation.
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
            mixed: known.mixed.joined(&new.mixed, all)?,
            out: all(&known.out, &new.out)?,
            projected: both(&known.projected, &new.projected)?,
            middle: behind(&known.middle, &new.middle)?,
            unit: known.unit.as_ref().zip(new.unit.as_ref()).map(|(known, new)| wide(known, new)).transpose()?,
            experts: None,
            lowered: both(&known.lowered, &new.lowered)?,
        })
    }
}
