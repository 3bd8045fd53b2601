//! Activation of an MLP between its gate and up projections and its down projection.

use super::super::{Error, Result};
use super::array::{DeviceArray, ElementKind, unset};
use super::launch::KernelLaunch;
use candle_core::Tensor;

/// Returns the array of `t`, which must be like `gate` and of the same length.
fn like<'a>(t: &'a Tensor, gate: DeviceArray<'_>) -> Result<DeviceArray<'a>> {
    let array = DeviceArray::from_tensor_with_kind(t, gate.kind)?;
    if array.len == gate.len {
        return Ok(array);
    }
    Err(Error::Shape { op: "activation", detail: format!("{} values with {}", array.len, gate.len) })
}

/// Returns the address of an optional array.
fn optional(array: Option<DeviceArray<'_>>) -> u64 {
    array.map_or(0, |array| array.at)
}

/// Computes [`crate::activation::forward`] on a device, for the function whose kernels have this name.
pub(crate) fn forward(gate: &Tensor, up: Option<&Tensor>, kernel: &str) -> Result<Tensor> {
    let g = DeviceArray::from_tensor(gate)?;
    let up = up.map(|up| like(up, g)).transpose()?;
    let out = unset(g.device, gate.shape(), g.kind)?;
    let launch = KernelLaunch::with_kind(g.device, "elementwise", &format!("{kernel}_forward"), g.kind).over(g.len);
    launch.array(DeviceArray::from_tensor(&out)?).array(g).address(optional(up)).size(g.len).run()?;
    Ok(out)
}

/// Computes [`crate::activation::backward`] on a device.
pub(crate) fn backward(gate: &Tensor, up: Option<&Tensor>, dy: &Tensor, kernel: &str) -> Result<(Tensor, Option<Tensor>)> {
    let g = DeviceArray::from_tensor(gate)?;
    let (up, dy) = (up.map(|up| like(up, g)).transpose()?, like(dy, g)?);
    let make = || unset(g.device, gate.shape(), ElementKind::from_tensor(gate)?);
    let (d_gate, d_up) = (make()?, up.map(|_| make()).transpose()?);
    let of_up = d_up.as_ref().map(DeviceArray::from_tensor).transpose()?;
    let launch = KernelLaunch::with_kind(g.device, "elementwise", &format!("{kernel}_backward"), g.kind).over(g.len);
    let launch = launch.array(DeviceArray::from_tensor(&d_gate)?).address(optional(of_up)).array(g).address(optional(up));
    launch.array(dy).size(g.len).run()?;
    Ok((d_gate, d_up))
}
