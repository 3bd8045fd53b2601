//! The critic: a linear head on the decoder's last hidden states, which gives the value of the
//! state in which each selected token is chosen.

use super::Result;
use super::weights::Linear;
use crate::ops::linear;
use candle_core::{Device, Tensor};

/// Values of hidden states `[M, D]`, `[M]`.
pub(super) fn values(hidden: &Tensor, head: &Linear) -> Result<Vec<f32>> {
    Ok(linear::forward(hidden, &head.weight, head.bias.as_ref())?.flatten_all()?.to_vec1()?)
}

/// Adds the gradients of the head into `d_head`, and those of the hidden states into `d_hidden`.
pub(super) fn backward(
    hidden: &Tensor,
    head: &Linear,
    d_values: &[f32],
    d_hidden: &Tensor,
    d_head: &Linear<Option<Tensor>>,
) -> Result<()> {
    let d_values = Tensor::from_slice(d_values, (d_values.len(), 1), &Device::Cpu)?;
    if let Some(d_weight) = &d_head.weight {
        linear::backward_weight(hidden, &d_values, d_weight, d_head.bias.as_ref().and_then(Option::as_ref))?;
    }
    Ok(linear::backward_input_into(d_hidden, &d_values, &head.weight)?)
}
