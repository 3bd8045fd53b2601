//! The critic: a linear head on the decoder's last hidden states. It computes the value of the state in which each selected token is
//! chosen.

use super::Error;
use super::Result;
use super::weights::Linear;
use crate::ops::{self, Precision, linear};
use candle_core::Tensor;

/// Computes the values `[M]` of hidden states `[M, D]`.
pub(super) fn values(hidden: &Tensor, head: &Linear) -> Result<Vec<f32>> {
    Ok(ops::to_vec(&linear::forward_f32(hidden, &head.weight, head.bias.as_ref())?)?)
}

/// Adds the gradients of the head to `d_head` and those of the hidden states to `d_hidden`.
pub(super) fn backward(
    hidden: &Tensor,
    head: &Linear,
    d_values: &[f32],
    d_hidden: &Tensor,
    d_head: &Linear<Option<Tensor>>,
) -> Result<()> {
    let d_values = ops::from_vec(d_values.to_vec(), (d_values.len(), 1), hidden.device())?;
    let d_values = ops::cast(&d_values, hidden.dtype())?;
    if let Some(d_weight) = &d_head.weight {
        linear::backward_weight(hidden, &d_values, d_weight, d_head.bias.as_ref().and_then(Option::as_ref), Precision::F32)?;
    }
    Ok(linear::backward_input_into(d_hidden, &d_values, &head.weight, Precision::F32)?)
}

/// Returns an error if a value is not finite.
pub(super) fn finite(values: Vec<f32>) -> Result<Vec<f32>> {
    if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(Error::ValuesNotFinite) }
}
