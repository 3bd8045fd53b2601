//! Updates a parameter.

use super::super::update::AdamWScalars;
use super::super::{Error, Result};
use super::array::{DeviceArray, ElementKind};
use super::launch::KernelLaunch;
use candle_core::Tensor;

/// Computes [`crate::adamw::update`] on a device.
pub(crate) fn adamw(
    param: &Tensor,
    grad: &Tensor,
    m: &Tensor,
    v: &Tensor,
    rounded: Option<&Tensor>,
    s: AdamWScalars,
) -> Result<()> {
    let [p, g, m, v] = [param, grad, m, v].map(|t| DeviceArray::from_tensor_with_kind(t, ElementKind::F32));
    let (p, g, m, v) = (p?, g?, m?, v?);
    let rounded = rounded.map(|t| DeviceArray::from_tensor_with_kind(t, ElementKind::Bf16)).transpose()?;
    if rounded.is_some_and(|rounded| rounded.len != p.len) {
        return Err(Error::Shape { op: "adamw", detail: format!("the rounded copy's size differs from {:?}", param.shape()) });
    }
    let launch = KernelLaunch::new(p.device, "optimizer", "adamw").over(p.len);
    let launch = launch.array(p).array(g).array(m).array(v).address(rounded.map_or(0, |rounded| rounded.at));
    let launch = launch.float(s.grad_scale).float(s.beta1).float(s.beta2).float(s.eps);
    launch.float(s.decay).float(s.step_size).float(s.root_bias2).size(p.len).run()
}
