//! Shapes of tensors.

use candle_core::Tensor;

/// Returns the rows and columns of a tensor seen as a matrix over its last dimension.
pub(super) fn matrix_dims(t: &Tensor) -> (usize, usize) {
    let dims = t.dims();
    let cols = dims.last().copied().unwrap_or(1);
    (t.elem_count() / cols.max(1), cols)
}
