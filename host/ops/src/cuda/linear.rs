//! Linear layers and low-rank adapters.

use super::super::adapter::{LowRankAdapter, LowRankGradient};
use super::super::{Result, matrix_dims};
use super::array::{DeviceArray, ElementKind, unset};
use super::gemm::{DeviceMatrix, product};
use super::launch::KernelLaunch;
use super::reduce;
use candle_core::Tensor;

fn mat<'a>(t: &'a Tensor, kind: ElementKind) -> Result<(DeviceArray<'a>, DeviceMatrix)> {
    let (rows, cols) = matrix_dims(t);
    let array = DeviceArray::from_tensor_with_kind(t, kind)?;
    Ok((array, DeviceMatrix::new(array, rows, cols)))
}

/// Computes `x w^T + b` in values of kind `out`. The bias is f32.
pub(crate) fn forward(x: &Tensor, w: &Tensor, b: Option<&Tensor>, out: ElementKind) -> Result<Tensor> {
    let kind = ElementKind::from_tensor(x)?;
    let ((xs, x), (_, w)) = (mat(x, kind)?, mat(w, kind)?);
    let y = unset(xs.device, (x.rows, w.rows), out)?;
    let ys = DeviceArray::from_tensor(&y)?;
    let mut keep = 0.0;
    if let Some(b) = b {
        let fill = KernelLaunch::with_kind(xs.device, "rows", "fill_rows", out).blocks(x.rows);
        fill.array(ys).array(DeviceArray::from_tensor_with_kind(b, ElementKind::F32)?).int(w.rows).run()?;
        keep = 1.0;
    }
    product(xs, DeviceMatrix::new(ys, x.rows, w.rows), keep, x, w.t(), 1.0)?;
    Ok(y)
}

/// Computes [`crate::linear::backward_input`] on a device.
pub(crate) fn backward_input(dy: &Tensor, w: &Tensor) -> Result<Tensor> {
    let kind = ElementKind::from_tensor(dy)?;
    let ((dys, dy), (_, w)) = (mat(dy, kind)?, mat(w, kind)?);
    let dx = unset(dys.device, (dy.rows, w.cols), kind)?;
    product(dys, mat(&dx, kind)?.1, 0.0, dy, w, 1.0)?;
    Ok(dx)
}

/// Computes [`crate::linear::backward_input_into`] on a device.
pub(crate) fn backward_input_into(dx: &Tensor, dy: &Tensor, w: &Tensor) -> Result<()> {
    let kind = ElementKind::from_tensor(dy)?;
    let ((dys, dy), (_, w)) = (mat(dy, kind)?, mat(w, kind)?);
    product(dys, mat(dx, kind)?.1, 1.0, dy, w, 1.0)
}

/// Adds `dw += dy^T x` and `db += ` the sum over rows of `dy`, both f32.
pub(crate) fn backward_weight(x: &Tensor, dy: &Tensor, dw: &Tensor, db: Option<&Tensor>) -> Result<()> {
    let kind = ElementKind::from_tensor(x)?;
    let ((xs, x), (_, dy_mat)) = (mat(x, kind)?, mat(dy, kind)?);
    product(xs, mat(dw, ElementKind::F32)?.1, 1.0, dy_mat.t(), x, 1.0)?;
    db.map_or(Ok(()), |db| reduce::add_column_sums(db, dy, 1.0))
}

/// Computes [`LowRankAdapter::forward_into`] on a device.
pub(crate) fn low_rank_into(l: &LowRankAdapter<'_>, x: &Tensor, y: &Tensor) -> Result<()> {
    let kind = ElementKind::from_tensor(x)?;
    let ((xs, x), (_, a), (_, b)) = (mat(x, kind)?, mat(l.a, kind)?, mat(l.b, kind)?);
    let inner = unset(xs.device, (x.rows, a.rows), kind)?;
    let (_, inner) = mat(&inner, kind)?;
    product(xs, inner, 0.0, x, a.t(), 1.0)?;
    product(xs, mat(y, kind)?.1, 1.0, inner, b.t(), l.scale)
}

/// Computes [`LowRankAdapter::backward`] on a device.
pub(crate) fn low_rank_backward(
    l: &LowRankAdapter<'_>,
    x: &Tensor,
    dy: &Tensor,
    gradient: Option<LowRankGradient<'_>>,
    dx: Option<&Tensor>,
) -> Result<()> {
    let kind = ElementKind::from_tensor(x)?;
    let ((xs, x), (_, dy), (_, a), (_, b)) = (mat(x, kind)?, mat(dy, kind)?, mat(l.a, kind)?, mat(l.b, kind)?);
    let d_inner = unset(xs.device, (x.rows, a.rows), kind)?;
    let (_, d_inner) = mat(&d_inner, kind)?;
    product(xs, d_inner, 0.0, dy, b, l.scale)?;
    if let Some(gradient) = gradient {
        let inner = unset(xs.device, (x.rows, a.rows), kind)?;
        let (_, inner) = mat(&inner, kind)?;
        product(xs, inner, 0.0, x, a.t(), 1.0)?;
        product(xs, mat(gradient.b, ElementKind::F32)?.1, 1.0, dy.t(), inner, l.scale)?;
        product(xs, mat(gradient.a, ElementKind::F32)?.1, 1.0, d_inner.t(), x, 1.0)?;
    }
    dx.map_or(Ok(()), |dx| product(xs, mat(dx, kind)?.1, 1.0, d_inner, a, 1.0))
}

/// Computes [`LowRankAdapter::merged`] on a device.
pub(crate) fn merged(l: &LowRankAdapter<'_>, w: &Tensor) -> Result<Tensor> {
    let kind = ElementKind::from_tensor(w)?;
    let out = super::copy(w)?;
    let ((outs, out_mat), (_, a), (_, b)) = (mat(&out, kind)?, mat(l.a, kind)?, mat(l.b, kind)?);
    product(outs, out_mat, 1.0, b, a, l.scale)?;
    Ok(out)
}
