//! Root-mean-square normalisation (Zhang and Sennrich 2019): `y = x / sqrt(mean(x^2) + eps) * w`,
//! over the last dimension, in f32.

#[cfg(feature = "cuda")]
use super::cuda;
use super::math::dot;
use super::rounding::FloatElement;
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, filled, read, tensor_of, write};
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use half::bf16;
use rayon::prelude::*;

#[inline(always)]
fn inverse_rms(row: &[f32], eps: f64) -> f32 {
    (1.0 / (f64::from(dot(row, row)) / row.len() as f64 + eps).sqrt()) as f32
}

/// Normalises `x: [.., d]` with the weight `w: [d]`. The result has the shape of `x`. On the CPU, it is in f32 or, if `rounds`, in bf16.
pub fn forward(x: &Tensor, w: &Tensor, eps: f64, rounds: bool) -> Result<Tensor> {
    on_device!(x, cuda::norm::forward(x, w, eps));
    if rounds { normalised::<bf16>(x, w, eps) } else { normalised::<f32>(x, w, eps) }
}

fn normalised<O: FloatElement>(x: &Tensor, w: &Tensor, eps: f64) -> Result<Tensor> {
    let (_, d) = matrix_dims(x);
    let (xs, ws) = (read(x)?, read(w)?);
    if ws.len() != d {
        return Err(Error::Shape { op: "rms_norm", detail: format!("{:?} with weight {:?}", x.shape(), w.shape()) });
    }
    let task = d * ROWS_PER_TASK;
    // SAFETY: the rows of both cover them completely.
    let out = unsafe {
        filled::<O>(xs.len(), |out| {
            out.par_chunks_mut(task).zip(xs.par_chunks(task)).for_each(|(ys, xs)| {
                wide!(for (y, x) in ys.chunks_mut(d).zip(xs.chunks(d)) {
                    let scale = inverse_rms(x, eps);
                    for ((y, x), w) in y.iter_mut().zip(x).zip(ws.iter()) {
                        y.write(O::nearest(x * scale * w));
                    }
                });
            });
        })
    };
    tensor_of(out, x.shape())
}

/// Adds the gradient of `x` to `dx`, and that of `w` to `dw` if given. Recomputes each row's norm instead of storing it.
pub fn backward(x: &Tensor, w: &Tensor, eps: f64, dy: &Tensor, dx: &Tensor, dw: Option<&Tensor>) -> Result<()> {
    on_device!(x, cuda::norm::backward(x, w, eps, dy, dx, dw));
    let (_, d) = matrix_dims(x);
    let (xs, ws, dys) = (read(x)?, read(w)?, read(dy)?);
    if dys.len() != xs.len() || dx.elem_count() != xs.len() {
        return Err(Error::Shape { op: "rms_norm backward", detail: format!("{:?} with gradient {:?}", x.shape(), dy.shape()) });
    }
    // Slices avoid a lookup through the tensor for each index.
    let (xs, ws, dys) = (&xs[..], &ws[..], &dys[..]);
    let task = d * ROWS_PER_TASK;
    let wanted = dw.is_some();
    let mut partial = Vec::new();
    write(dx, |dx| {
        dx.par_chunks_mut(task)
            .zip(xs.par_chunks(task).zip(dys.par_chunks(task)))
            .map(|(dxs, (xs, dys))| {
                let mut dw = vec![0f32; if wanted { d } else { 0 }];
                wide!(for ((dx, x), dy) in dxs.chunks_mut(d).zip(xs.chunks(d)).zip(dys.chunks(d)) {
                    let scale = inverse_rms(x, eps);
                    let mut lanes = 0.0;
                    for ((x, dy), w) in x.iter().zip(dy).zip(ws.iter()) {
                        lanes += x * dy * w;
                    }
                    let along = lanes * scale * scale * scale / d as f32;
                    for i in 0..d {
                        dx[i] += dy[i] * ws[i] * scale - x[i] * along;
                    }
                    for (dw, (dy, x)) in dw.iter_mut().zip(dy.iter().zip(x)) {
                        *dw += dy * x * scale;
                    }
                });
                dw
            })
            .collect_into_vec(&mut partial);
    })?;
    let Some(dw) = dw else { return Ok(()) };
    write(dw, |dw| {
        for part in &partial {
            for (d, p) in dw.iter_mut().zip(part) {
                *d += p;
            }
        }
    })
}
