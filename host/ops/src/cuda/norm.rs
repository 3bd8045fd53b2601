//! Root-mean-square and layer normalisation.

use super::super::{Error, Result, matrix_dims};
use super::array::{DeviceArray, ElementKind, at, buffer, unset};
use super::launch::KernelLaunch;
use super::reduce;
use candle_core::Tensor;

/// Number of rows per block, one per warp.
const ROWS: usize = 8;

/// Computes [`crate::norm::forward`] on a device.
pub(crate) fn forward(x: &Tensor, w: &Tensor, eps: f64) -> Result<Tensor> {
    let (rows, d) = matrix_dims(x);
    let (xs, ws) = (DeviceArray::from_tensor(x)?, DeviceArray::from_tensor_with_kind(w, ElementKind::F32)?);
    if ws.len != d {
        return Err(Error::Shape { op: "rms_norm", detail: format!("{:?} with weight {:?}", x.shape(), w.shape()) });
    }
    let y = unset(xs.device, x.shape(), xs.kind)?;
    let launch = KernelLaunch::with_kind(xs.device, "norm", "rms_norm_forward", xs.kind).blocks(rows.div_ceil(ROWS));
    launch.array(DeviceArray::from_tensor(&y)?).array(xs).array(ws).float(eps as f32).int(rows).int(d).run()?;
    Ok(y)
}

/// Computes [`crate::norm::backward`] on a device.
pub(crate) fn backward(x: &Tensor, w: &Tensor, eps: f64, dy: &Tensor, dx: &Tensor, dw: Option<&Tensor>) -> Result<()> {
    let (rows, d) = matrix_dims(x);
    let (xs, ws) = (DeviceArray::from_tensor(x)?, DeviceArray::from_tensor_with_kind(w, ElementKind::F32)?);
    let (dys, dxs) = (DeviceArray::from_tensor_with_kind(dy, xs.kind)?, DeviceArray::from_tensor_with_kind(dx, xs.kind)?);
    if ws.len != d || dys.len != xs.len || dxs.len != xs.len {
        return Err(Error::Shape { op: "rms_norm backward", detail: format!("{:?} with gradient {:?}", x.shape(), dy.shape()) });
    }
    let scales = buffer::<f32>(xs.device, rows)?;
    let launch = KernelLaunch::with_kind(xs.device, "norm", "rms_norm_backward", xs.kind).blocks(rows.div_ceil(ROWS));
    let launch = launch.array(dxs).address(at(&scales)).array(xs).array(ws).array(dys);
    launch.float(eps as f32).int(rows).int(d).run()?;
    dw.map_or(Ok(()), |dw| reduce::add_norm_weight_gradient(dw, x, dy, at(&scales), 0))
}

/// Computes [`crate::layer_norm::forward`] on a device.
pub(crate) fn layer_forward(x: &Tensor, w: &Tensor, b: &Tensor, eps: f64) -> Result<Tensor> {
    let (rows, d) = matrix_dims(x);
    let (xs, ws, bs) = (
        DeviceArray::from_tensor(x)?,
        DeviceArray::from_tensor_with_kind(w, ElementKind::F32)?,
        DeviceArray::from_tensor_with_kind(b, ElementKind::F32)?,
    );
    if ws.len != d || bs.len != d {
        return Err(Error::Shape { op: "layer_norm", detail: format!("{:?} with weight {:?}", x.shape(), w.shape()) });
    }
    let y = unset(xs.device, x.shape(), xs.kind)?;
    let launch = KernelLaunch::with_kind(xs.device, "norm", "layer_norm_forward", xs.kind).blocks(rows.div_ceil(ROWS));
    launch.array(DeviceArray::from_tensor(&y)?).array(xs).array(ws).array(bs).float(eps as f32).int(rows).int(d).run()?;
    Ok(y)
}

/// Computes [`crate::layer_norm::backward`] on a device.
pub(crate) fn layer_backward(
    x: &Tensor,
    w: &Tensor,
    eps: f64,
    dy: &Tensor,
    dx: &Tensor,
    of_weights: Option<(&Tensor, &Tensor)>,
) -> Result<()> {
    let (rows, d) = matrix_dims(x);
    let (xs, ws) = (DeviceArray::from_tensor(x)?, DeviceArray::from_tensor_with_kind(w, ElementKind::F32)?);
    let (dys, dxs) = (DeviceArray::from_tensor_with_kind(dy, xs.kind)?, DeviceArray::from_tensor_with_kind(dx, xs.kind)?);
    if ws.len != d || dys.len != xs.len || dxs.len != xs.len {
        let detail = format!("{:?} with gradient {:?}", x.shape(), dy.shape());
        return Err(Error::Shape { op: "layer_norm backward", detail });
    }
    let (scales, means) = (buffer::<f32>(xs.device, rows)?, buffer::<f32>(xs.device, rows)?);
    let launch = KernelLaunch::with_kind(xs.device, "norm", "layer_norm_backward", xs.kind).blocks(rows.div_ceil(ROWS));
    let launch = launch.array(dxs).address(at(&scales)).address(at(&means)).array(xs).array(ws).array(dys);
    launch.float(eps as f32).int(rows).int(d).run()?;
    let Some((dw, db)) = of_weights else { return Ok(()) };
    reduce::add_norm_weight_gradient(dw, x, dy, at(&scales), at(&means))?;
    // The bias's gradient needs rows of the weight's length, which a packed tensor may not have.
    reduce::add_column_sums(db, &dy.reshape((rows, d))?, 1.0)
}
