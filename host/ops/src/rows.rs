//! Operations on selected rows of a matrix.

#[cfg(feature = "cuda")]
use super::cuda;
use super::elementwise::to_vec;
use super::math::sigmoid;
use super::slices::{read, read_as, tensor_of, write};
use super::{Capability, Error, Result, matrix_dims, on_device};
use candle_core::{DType, Tensor, WithDType};
use half::bf16;
use rayon::prelude::*;

/// Converts row numbers to a device's type. Returns an error if one is not a row of `t`.
#[cfg(feature = "cuda")]
fn numbers(t: &Tensor, rows: &[usize]) -> Result<Vec<u32>> {
    let (n, _) = matrix_dims(t);
    match rows.iter().find(|&&row| row >= n) {
        Some(bad) => Err(Error::Shape { op: "rows", detail: format!("row {bad} of {n}") }),
        None => Ok(rows.iter().map(|&row| row as u32).collect()),
    }
}

/// Returns rows `rows` of `t: [N, D]` as `[M, D]`.
pub fn gather_rows(t: &Tensor, rows: &[usize]) -> Result<Tensor> {
    on_device!(t, cuda::rows::gather(t, &numbers(t, rows)?));
    if t.dtype() == DType::BF16 { gathered::<bf16>(t, rows) } else { gathered::<f32>(t, rows) }
}

fn gathered<T: WithDType>(t: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let (_, cols) = matrix_dims(t);
    let src = read_as::<T>(t)?;
    let mut out = Vec::with_capacity(rows.len() * cols);
    for &r in rows {
        out.extend_from_slice(&src[r * cols..(r + 1) * cols]);
    }
    tensor_of(out, (rows.len(), cols))
}

/// Adds row `i` of `from: [M, D]` to row `rows[i]` of `into: [N, D]`: the transpose of [`gather_rows`].
pub fn scatter_add_rows(into: &Tensor, from: &Tensor, rows: &[usize]) -> Result<()> {
    on_device!(into, cuda::rows::scatter_add(into, from, &numbers(into, rows)?));
    let (_, cols) = matrix_dims(into);
    let src = read(from)?;
    if src.len() != rows.len() * cols {
        return Err(Error::Shape {
            op: "scatter_add_rows",
            detail: format!("{:?} for {} rows of {cols}", from.shape(), rows.len()),
        });
    }
    write(into, |dst| {
        for (from, &r) in src.chunks(cols).zip(rows) {
            for (d, s) in dst[r * cols..(r + 1) * cols].iter_mut().zip(from) {
                *d += s;
            }
        }
    })
}

/// Multiplies each row of `x: [N, D]` by its factor, in place. CPU only.
pub fn scale_rows(x: &Tensor, factors: &[f32]) -> Result<()> {
    Capability::RowFactors.require(x)?;
    let (n, width) = matrix_dims(x);
    if factors.len() != n {
        return Err(Error::Shape { op: "scale_rows", detail: format!("{:?} with {} factors", x.shape(), factors.len()) });
    }
    write(x, |xs| {
        xs.par_chunks_mut(width.max(1)).zip(factors).for_each(|(row, factor)| {
            row.iter_mut().for_each(|x| *x *= factor);
        });
    })
}

/// Returns the logistic function of each value.
pub fn sigmoids(t: &Tensor) -> Result<Vec<f32>> {
    Ok(to_vec(t)?.into_iter().map(sigmoid).collect())
}
