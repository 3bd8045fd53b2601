//! Gradients of a linear map.

use super::masked_linear::MaskedLinear;
use super::weights::Linear;
use crate::ops::low_rank::LowRankGradient;
use crate::ops::{self, columns, linear};
use candle_core::{DType, Tensor};

/// The gradient of each trained parameter.
pub(super) type GradientSlot = Option<Tensor>;

/// Adds the gradients of a linear layer's parameters to `grad` and returns the input's gradient.
pub(super) fn apply_backward(l: &MaskedLinear<'_>, x: &Tensor, dy: &Tensor, grad: &Linear<GradientSlot>) -> ops::Result<Tensor> {
    if l.magnitude()?.is_some() {
        let dx = ops::zeros_like(x)?;
        apply_backward_into(l, x, dy, grad, &dx)?;
        return Ok(dx);
    }
    let dx = linear::backward_input(dy, l.linear.matrix(), l.precision)?;
    backward_parameters(l, x, dy, grad, &dx)?;
    Ok(dx)
}

/// Adds the gradients of a linear layer's parameters to `grad`, and that of an input that several layers read to `dx`.
pub(super) fn apply_backward_into(
    l: &MaskedLinear<'_>,
    x: &Tensor,
    dy: &Tensor,
    grad: &Linear<GradientSlot>,
    dx: &Tensor,
) -> ops::Result<()> {
    if l.magnitude()?.is_some() {
        backward_biases(l, dy, grad)?;
        return l.directed_backward(x, dy, grad, dx);
    }
    linear::backward_input_into(dx, dy, l.linear.matrix(), l.precision)?;
    backward_parameters(l, x, dy, grad, dx)
}

/// Adds the gradients of maps that read the same input, or of the map that joins them, given the gradients of all results. Returns the
/// gradient of the input.
pub(super) fn products_backward(
    maps: &[MaskedLinear<'_>],
    x: &Tensor,
    dys: &[&Tensor],
    widths: &[usize],
    grads: &[Linear<GradientSlot>],
) -> ops::Result<Tensor> {
    let missing = || ops::Error::Shape { op: "layer", detail: "a layer without projections".into() };
    if let ([joined], [grad]) = (maps, grads)
        && dys.len() > 1
    {
        return apply_backward(joined, x, &columns::join(dys, widths)?, grad);
    }
    let mut all = maps.iter().zip(dys).zip(grads);
    let ((first, dy), grad) = all.next().ok_or_else(missing)?;
    let dx = apply_backward(first, x, dy, grad)?;
    all.try_for_each(|((map, dy), grad)| apply_backward_into(map, x, dy, grad, &dx))?;
    Ok(dx)
}

/// Adds the gradients of a linear layer's parameters, and the adapter's contribution to the input's gradient.
fn backward_parameters(
    l: &MaskedLinear<'_>,
    x: &Tensor,
    dy: &Tensor,
    grad: &Linear<GradientSlot>,
    dx: &Tensor,
) -> ops::Result<()> {
    if let Some(d_weight) = &grad.weight {
        linear::backward_weight(x, dy, d_weight, grad.bias.as_ref().and_then(Option::as_ref), l.precision)?;
    }
    backward_biases(l, dy, grad)?;
    let Some(adapter) = l.adapter() else { return Ok(()) };
    let gradient = gradient_of_adapter(grad);
    let Some(mask) = &l.mask else { return adapter.backward(x, dy, gradient, Some(dx)) };
    let d_dropped = ops::zeros_like(x)?;
    adapter.backward(&mask.apply(x)?, dy, gradient, Some(&d_dropped))?;
    mask.add_applied(&d_dropped, dx)
}

/// Adds the gradients of biases that are trained without their weight: the layer's own, and that of the adapter's `B`.
fn backward_biases(l: &MaskedLinear<'_>, dy: &Tensor, grad: &Linear<GradientSlot>) -> ops::Result<()> {
    let own = grad.bias.as_ref().and_then(Option::as_ref).filter(|_| grad.weight.is_none());
    let of_adapter = grad.adapter.as_ref().and_then(|adapter| adapter.bias.as_ref()?.as_ref());
    if own.is_none() && of_adapter.is_none() {
        return Ok(());
    }
    let sum = ops::cast(dy, DType::F32)?.sum(0)?;
    if let Some(d_bias) = own {
        ops::add_into(d_bias, &sum)?;
    }
    match (of_adapter, &l.linear.adapter) {
        (Some(d_bias), Some(adapter)) => ops::add_into(d_bias, &ops::scaled(&sum, adapter.scale)?),
        _ => Ok(()),
    }
}

/// Returns the tensors to which the gradients of an adapter's matrices are added.
pub(super) fn gradient_of_adapter(grad: &Linear<GradientSlot>) -> Option<LowRankGradient<'_>> {
    grad.adapter.as_ref().and_then(|g| Some(LowRankGradient { a: g.a.as_ref()?, b: g.b.as_ref()? }))
}
