//! Products of sorted rows with their experts' matrices, one product for each expert that has rows, and sums over a token's experts.

use super::super::routes::Routes;
use super::super::{Result, matrix_dims};
use super::array::{DeviceArray, DeviceBuffer, ElementKind, unset};
use super::gemm::{DeviceMatrix, product};
use super::launch::KernelLaunch;
use candle_core::Tensor;
use std::ops::Range;

/// Number of threads of a block that processes a row.
const THREADS: u32 = 256;

/// Number of rows per block, for a kernel with one warp per row.
const ROWS: usize = 8;

/// Views `t` as a matrix over its last dimension.
fn mat<'a>(t: &'a Tensor, kind: ElementKind) -> Result<(DeviceArray<'a>, DeviceMatrix)> {
    let (rows, cols) = matrix_dims(t);
    let array = DeviceArray::from_tensor_with_kind(t, kind)?;
    Ok((array, DeviceMatrix::new(array, rows, cols)))
}

/// Returns the matrix of an expert from those of all experts, `[E * out, in]`.
fn of_expert(all: DeviceMatrix, expert: usize, routes: &Routes) -> DeviceMatrix {
    let own = all.rows / routes.experts;
    all.rows(expert * own, own)
}

fn part(of: DeviceMatrix, rows: &Range<usize>) -> DeviceMatrix {
    of.rows(rows.start, rows.len())
}

/// Computes [`crate::experts::forward`] on a device. The callers of these functions have checked all sizes.
pub(crate) fn forward(x: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor> {
    let kind = ElementKind::from_tensor(x)?;
    let ((xs, x), (_, w)) = (mat(x, kind)?, mat(w, kind)?);
    let out = unset(xs.device, (x.rows, w.rows / routes.experts), kind)?;
    let (_, to) = mat(&out, kind)?;
    for (expert, rows) in routes.groups() {
        product(xs, part(to, &rows), 0.0, part(x, &rows), of_expert(w, expert, routes).t(), 1.0)?;
    }
    Ok(out)
}

/// Computes [`crate::experts::backward_input`] on a device.
pub(crate) fn backward_input(dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor> {
    let kind = ElementKind::from_tensor(dy)?;
    let ((dys, dy), (_, w)) = (mat(dy, kind)?, mat(w, kind)?);
    let out = unset(dys.device, (dy.rows, w.cols), kind)?;
    let (_, to) = mat(&out, kind)?;
    for (expert, rows) in routes.groups() {
        product(dys, part(to, &rows), 0.0, part(dy, &rows), of_expert(w, expert, routes), 1.0)?;
    }
    Ok(out)
}

/// Computes [`crate::experts::backward_weight`] on a device; `dw` is f32.
pub(crate) fn backward_weight(x: &Tensor, dy: &Tensor, dw: &Tensor, routes: &Routes) -> Result<()> {
    let kind = ElementKind::from_tensor(x)?;
    let ((xs, x), (_, dy), (_, dw)) = (mat(x, kind)?, mat(dy, kind)?, mat(dw, ElementKind::F32)?);
    for (expert, rows) in routes.groups() {
        product(xs, of_expert(dw, expert, routes), 1.0, part(dy, &rows).t(), part(x, &rows), 1.0)?;
    }
    Ok(())
}

/// Adds to each row of `into: [N, D]` its `each` rows of `from: [R, D]`, whose numbers are `places: [N, each]`, times their weights, if
/// given.
pub(crate) fn add_places(into: &Tensor, from: &Tensor, places: &[usize], weights: Option<&[f32]>, each: usize) -> Result<()> {
    let (n, d) = matrix_dims(into);
    let to = DeviceArray::from_tensor(into)?;
    let places: Vec<u32> = places.iter().map(|place| *place as u32).collect();
    let places = DeviceBuffer::new(to.device, &places)?;
    let weights = weights.map(|weights| DeviceBuffer::new(to.device, weights)).transpose()?;
    let launch = KernelLaunch::with_kind(to.device, "rows", "add_places", to.kind).blocks(n).threads(THREADS);
    let launch = launch.array(to).array(DeviceArray::from_tensor_with_kind(from, to.kind)?).address(places.at());
    launch.address(weights.as_ref().map_or(0, DeviceBuffer::at)).int(each).int(d).run()
}

/// Returns the rows of `x: [R, D]`, each times its weight.
pub(crate) fn scale_rows(x: &Tensor, weights: &[f32]) -> Result<Tensor> {
    let (n, d) = matrix_dims(x);
    let from = DeviceArray::from_tensor(x)?;
    let out = unset(from.device, x.shape(), from.kind)?;
    let weights = DeviceBuffer::new(from.device, weights)?;
    let launch = KernelLaunch::with_kind(from.device, "rows", "scale_rows", from.kind).blocks(n).threads(THREADS);
    launch.array(DeviceArray::from_tensor(&out)?).array(from).address(weights.at()).int(d).run()?;
    Ok(out)
}

/// Computes [`crate::experts::dots`] on a device.
pub(crate) fn dots(a: &Tensor, b: &Tensor) -> Result<Vec<f32>> {
    let (n, d) = matrix_dims(a);
    let first = DeviceArray::from_tensor(a)?;
    let out = unset(first.device, n, ElementKind::F32)?;
    let launch = KernelLaunch::with_kind(first.device, "rows", "row_dots", first.kind).blocks(n.div_ceil(ROWS));
    launch
        .array(DeviceArray::from_tensor(&out)?)
        .array(first)
        .array(DeviceArray::from_tensor_with_kind(b, first.kind)?)
        .int(n)
        .int(d)
        .run()?;
    super::to_vec(&out)
}
