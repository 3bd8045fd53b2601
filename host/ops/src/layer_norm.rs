//! Layer normalisation (Ba et al. 2016, arXiv 1607.06450): `y = (x - mean) / sqrt(variance + eps) * w + b`, over the last
//! dimension, in f32.

#[cfg(feature = "cuda")]
use super::cuda;
use super::math::sum_by;
use super::rounding::FloatElement;
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, filled, read, tensor_of, write};
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use half::bf16;
use rayon::prelude::*;

/// Returns a row's mean and the inverse of its standard deviation.
#[inline(always)]
fn moments(row: &[f32], eps: f64) -> (f32, f32) {
    let n = row.len() as f64;
    let mean = (f64::from(sum_by(row, |x| x)) / n) as f32;
    let squares = f64::from(sum_by(row, |x| (x - mean) * (x - mean)));
    (mean, (1.0 / (squares / n + eps).sqrt()) as f32)
}

/// Normalises `x: [.., d]` with the weight `w: [d]` and the bias `b: [d]`. The result has the shape of `x`. On the CPU, it is in f32 or, if
/// `rounds`, in bf16.
pub fn forward(x: &Tensor, w: &Tensor, b: &Tensor, eps: f64, rounds: bool) -> Result<Tensor> {
    on_device!(x, cuda::norm::layer_forward(x, w, b, eps));
    if rounds { normalised::<bf16>(x, w, b, eps) } else { normalised::<f32>(x, w, b, eps) }
}

fn normalised<O: FloatElement>(x: &Tensor, w: &Tensor, b: &Tensor, eps: f64) -> Result<Tensor> {
    let (_, d) = matrix_dims(x);
    let (xs, ws, bs) = (read(x)?, read(w)?, read(b)?);
    // Slices avoid a lookup through the tensor for each index.
    let (xs, ws, bs) = (&xs[..], &ws[..], &bs[..]);
    if ws.len() != d || bs.len() != d {
        return Err(Error::Shape { op: "layer_norm", detail: format!("{:?} with weight {:?}", x.shape(), w.shape()) });
    }
    let task = d * ROWS_PER_TASK;
    // SAFETY: the rows of both cover them completely.
    let out = unsafe {
        filled::<O>(xs.len(), |out| {
            out.par_chunks_mut(task).zip(xs.par_chunks(task)).for_each(|(ys, xs)| {
                wide!(for (y, x) in ys.chunks_mut(d).zip(xs.chunks(d)) {
                    let (mean, scale) = moments(x, eps);
                    for i in 0..d {
                        y[i].write(O::nearest((x[i] - mean) * scale * ws[i] + bs[i]));
                    }
                });
            });
        })
    };
    tensor_of(out, x.shape())
}

/// Adds the gradient of `x` to `dx`, and those of `w` and `b` to `dw` and `db` if given. Recomputes each row's moments instead of storing
/// them.
pub fn backward(
    x: &Tensor,
    w: &Tensor,
    eps: f64,
    dy: &Tensor,
    dx: &Tensor,
    of_weights: Option<(&Tensor, &Tensor)>,
) -> Result<()> {
    on_device!(x, cuda::norm::layer_backward(x, w, eps, dy, dx, of_weights));
    let (_, d) = matrix_dims(x);
    let (xs, ws, dys) = (read(x)?, read(w)?, read(dy)?);
    let (xs, ws, dys) = (&xs[..], &ws[..], &dys[..]);
    if ws.len() != d || dys.len() != xs.len() || dx.elem_count() != xs.len() {
        return Err(Error::Shape {
            op: "layer_norm backward",
            detail: format!("{:?} with gradient {:?}", x.shape(), dy.shape()),
        });
    }
    let task = d * ROWS_PER_TASK;
    let wanted = of_weights.is_some();
    let mut partial = Vec::new();
    write(dx, |dx| {
        dx.par_chunks_mut(task)
            .zip(xs.par_chunks(task).zip(dys.par_chunks(task)))
            .map(|(dxs, (xs, dys))| {
                let size = if wanted { d } else { 0 };
                let (mut dw, mut db) = (vec![0f32; size], vec![0f32; size]);
                wide!(for ((dx, x), dy) in dxs.chunks_mut(d).zip(xs.chunks(d)).zip(dys.chunks(d)) {
                    let (mean, scale) = moments(x, eps);
                    let (mut along, mut level) = (0.0, 0.0);
                    for i in 0..d {
                        let d_normed = dy[i] * ws[i];
                        level += d_normed;
                        along += d_normed * (x[i] - mean) * scale;
                    }
                    let (level, along) = (level / d as f32, along / d as f32);
                    for i in 0..d {
                        dx[i] += scale * (dy[i] * ws[i] - level - (x[i] - mean) * scale * along);
                    }
                    for (i, (dw, db)) in dw.iter_mut().zip(&mut db).enumerate() {
                        *dw += dy[i] * (x[i] - mean) * scale;
                        *db += dy[i];
                    }
                });
                (dw, db)
            })
            .collect_into_vec(&mut partial);
    })?;
    let Some((dw, db)) = of_weights else { return Ok(()) };
    let add = |into: &mut [f32], part: &[f32]| into.iter_mut().zip(part).for_each(|(d, p)| *d += p);
    write(dw, |dw| partial.iter().for_each(|(part, _)| add(dw, part)))?;
    write(db, |db| partial.iter().for_each(|(_, part)| add(db, part)))
}
