//! What layers of a pass read besides the previous layer's output: inputs of their own, and keys and values of earlier layers; with the
//! gradients of both, until the layers that made them are reached.

use super::Architecture;
use super::mixer::other_kind;
use crate::ops;
use candle_core::Tensor;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What layers of a pass read besides the previous layer's output.
#[derive(Default)]
pub(super) struct PassSources {
    /// Layers' own inputs, if they have some.
    pub inputs: Option<LayerInputs>,
    pub heads: SharedHeads,
}

/// Layers' own inputs in a pass.
pub(super) struct LayerInputs {
    /// The first layer's input, `[N, D]`.
    pub first: Tensor,
    /// Each layer's own input, `[N, P]`.
    pub each: Vec<Tensor>,
    /// The gradients of these.
    gradients: Mutex<BTreeMap<usize, Tensor>>,
}

/// Keys and values that several layers read, by the layer that made them, as attention reads them.
#[derive(Default)]
pub(super) struct SharedHeads {
    all: BTreeMap<usize, [Tensor; 2]>,
    gradients: Mutex<BTreeMap<usize, [Tensor; 2]>>,
}

/// Locks gradients, of which a thread that failed leaves none half written.
fn locked<T>(gradients: &Mutex<T>) -> MutexGuard<'_, T> {
    gradients.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PassSources {
    /// Returns the bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        let of = |t: &Tensor| t.elem_count() * t.dtype().size_in_bytes();
        let inputs = self.inputs.iter().flat_map(|inputs| inputs.each.iter().chain([&inputs.first]));
        inputs.chain(self.heads.all.values().flatten()).map(of).sum()
    }
}

impl LayerInputs {
    /// Creates the inputs of a pass, without gradients.
    pub(super) fn new(first: Tensor, each: Vec<Tensor>) -> Self {
        Self { first, each, gradients: Mutex::default() }
    }

    /// Returns a layer's own input for `rows`, or for all.
    pub(super) fn rows(&self, layer: usize, rows: Option<&[usize]>) -> ops::Result<Tensor> {
        let all = self.each.get(layer).ok_or_else(other_kind)?;
        rows.map_or_else(|| Ok(all.clone()), |rows| ops::gather_rows(all, rows))
    }

    /// Keeps the gradient of a layer's own input for `rows`, or for all.
    pub(super) fn keep_gradient(&self, layer: usize, rows: Option<&[usize]>, d_input: Tensor) -> ops::Result<()> {
        let d_input = match rows {
            None => d_input,
            Some(rows) => {
                let all = ops::zeros_like(self.each.get(layer).ok_or_else(other_kind)?)?;
                ops::scatter_add_rows(&all, &d_input, rows)?;
                all
            }
        };
        locked(&self.gradients).insert(layer, d_input);
        Ok(())
    }

    /// Returns the gradients of all layers' own inputs, in order.
    pub(super) fn take_gradients(&self) -> Vec<Tensor> {
        std::mem::take(&mut *locked(&self.gradients)).into_values().collect()
    }
}

impl SharedHeads {
    /// Keeps keys and values of a layer.
    pub(super) fn keep(&mut self, layer: usize, heads: [Tensor; 2]) {
        self.all.insert(layer, heads);
    }

    /// Returns the keys and values that a layer reads, if they are another's.
    pub(super) fn read_by(&self, a: &Architecture, layer: usize) -> Option<[Tensor; 2]> {
        self.all.get(&a.key_source(layer)?).cloned()
    }

    /// Adds the gradients of keys and values of `source` from a layer that read them.
    pub(super) fn add_gradients(&self, source: usize, [dk, dv]: [Tensor; 2]) -> ops::Result<()> {
        let mut all = locked(&self.gradients);
        match all.get(&source) {
            Some([sum_k, sum_v]) => {
                ops::add_into(sum_k, &dk)?;
                ops::add_into(sum_v, &dv)
            }
            None => {
                all.insert(source, [dk, dv]);
                Ok(())
            }
        }
    }

    /// Returns the gradients of a layer's keys and values from the layers that read them.
    pub(super) fn take_gradients(&self, layer: usize) -> Option<[Tensor; 2]> {
        locked(&self.gradients).remove(&layer)
    }
}
