//! Products of sorted rows with their experts' matrices, one product for each expert that has rows, and sums over a token's experts.

use super::super::routes::Routes;
use super::super::{Result, matrix_dims};
use super::array::{Array, Kind, Uploaded, unset};
use super::gemm::{Mat, product};
use super::launch::Launch;
use candle_core::Tensor;
use std::ops::Range;

/// Threads of a block that processes a row.
const THREADS: u32 = 256;

/// Rows per block of a kernel with a warp for each.
const ROWS: usize = 8;

/// Views `t` as a matrix over its last dimension.
fn mat<'a>(t: &'a Tensor, kind: Kind) -> Result<(Array<'a>, Mat)> {
    let (rows, cols) = matrix_dims(t);
    let array = Array::of_kind(t, kind)?;
    Ok((array, Mat::new(array, rows, cols)))
}

/// Returns the matrix of an expert among those of all, `[E * out, in]`.
fn of_expert(all: Mat, expert: usize, routes: &Routes) -> Mat {
    let own = all.rows / routes.experts;
    all.rows(expert * own, own)
}

fn part(of: Mat, rows: &Range<usize>) -> Mat {
    of.rows(rows.start, rows.len())
}

/// Computes [`crate::experts::forward`] on a device. The callers of these functions have checked all sizes.
pub(crate) fn forward(x: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor> {
    let kind = Kind::of(x)?;
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
    let kind = Kind::of(dy)?;
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
    let kind = Kind::of(x)?;
    let ((xs, x), (_, dy), (_, dw)) = (mat(x, kind)?, mat(dy, kind)?, mat(dw, Kind::F32)?);
    for (expert, rows) in routes.groups() {
        product(xs, of_expert(dw, expert, routes), 1.0, part(dy, &rows).t(), part(x, &rows), 1.0)?;
    }
    Ok(())
}

/// Adds to each row of `into: [N, D]` its `each` rows of `from: [R, D]`, whose numbers are `places: [N, each]`, times their weights
/// if they have any.
pub(crate) fn add_places(into: &Tensor, from: &Tensor, places: &[usize], weights: Option<&[f32]>, each: usize) -> Result<()> {
    let (n, d) = matrix_dims(into);
    let to = Array::of(into)?;
    let places: Vec<u32> = places.iter().map(|place| *place as u32).collect();
    let places = Uploaded::new(to.device, &places)?;
    let weights = weights.map(|weights| Uploaded::new(to.device, weights)).transpose()?;
    let launch = Launch::of_kind(to.device, "rows", "add_places", to.kind).blocks(n).threads(THREADS);
    let launch = launch.array(to).array(Array::of_kind(from, to.kind)?).address(places.at());
    launch.address(weights.as_ref().map_or(0, Uploaded::at)).int(each).int(d).run()
}

/// Returns the rows of `x: [R, D]`, each times its weight.
pub(crate) fn scale_rows(x: &Tensor, weights: &[f32]) -> Result<Tensor> {
    let (n, d) = matrix_dims(x);
    let from = Array::of(x)?;
    let out = unset(from.device, x.shape(), from.kind)?;
    let weights = Uploaded::new(from.device, weights)?;
    let launch = Launch::of_kind(from.device, "rows", "scale_rows", from.kind).blocks(n).threads(THREADS);
    launch.array(Array::of(&out)?).array(from).address(weights.at()).int(d).run()?;
    Ok(out)
}

/// Computes [`crate::experts::dots`] on a device.
pub(crate) fn dots(a: &Tensor, b: &Tensor) -> Result<Vec<f32>> {
    let (n, d) = matrix_dims(a);
    let first = Array::of(a)?;
    let out = unset(first.device, n, Kind::F32)?;
    let launch = Launch::of_kind(first.device, "rows", "row_dots", first.kind).blocks(n.div_ceil(ROWS));
    launch.array(Array::of(&out)?).array(first).array(Array::of_kind(b, first.kind)?).int(n).int(d).run()?;
    super::to_vec(&out)
}
