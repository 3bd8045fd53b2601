//! A linear layer whose weight is `m V / |V|` by rows, with `V = W + s B A`: each output has a separate magnitude in addition to the
//! direction that a low-rank adapter changes (DoRA, Liu et al. 2024, arXiv 2402.09353, equation 5). As in its section 4.3 and in the `peft`
//! package, the lengths `|V|` count as constants in the gradient. CPU only.

use super::gemm::{WriteMode, matmul};
use super::low_rank::LowRankAdapter;
use super::simd::wide;
use super::slices::{read, tensor, write};
use super::view::{MatrixView, Precision};
use super::weight_storage::{WeightMatrix, WeightValues};
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// Maximum number of a weight's values in f32 at once.
const MOST: usize = 1 << 22;

/// Number of outputs per task in sums over rows.
const OUTPUTS_PER_TASK: usize = 128;

/// Magnitudes, and the lengths that they replace.
#[derive(Clone, Copy, Debug)]
pub struct Magnitude<'a> {
    /// Magnitudes `m`, `[out]`.
    pub values: &'a Tensor,
    /// Lengths `|V|`, `[out]`, from [`lengths`].
    pub lengths: &'a Tensor,
}

fn length(row: &[f32]) -> f32 {
    row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32
}

/// Returns the length of each row of `w + s B A`, `[out]`.
///
/// # Errors
/// If the shapes don't fit, or the tensors are not on the CPU.
pub fn lengths<'a>(w: impl Into<WeightMatrix<'a>>, adapter: &LowRankAdapter<'_>) -> Result<Tensor> {
    let w = w.into();
    let ((d_out, d_in), (r, a_in), (b_out, b_r)) = (w.dims(), matrix_dims(adapter.a), matrix_dims(adapter.b));
    if (a_in, b_out, b_r) != (d_in, d_out, r) {
        let detail = format!("A {:?} and B {:?} for {d_out} by {d_in}", adapter.a.shape(), adapter.b.shape());
        return Err(Error::Shape { op: "lengths", detail });
    }
    let (stored, a, b) = (WeightValues::open(w)?, read(adapter.a)?, read(adapter.b)?);
    let mut all = Vec::with_capacity(d_out);
    let step = (MOST / d_in.max(1)).max(1);
    for first in (0..d_out).step_by(step) {
        let end = d_out.min(first + step);
        let mut rows = stored.widened(first * d_in..end * d_in);
        let b = MatrixView::new(&b[first * r..end * r], end - first, r);
        matmul(&mut rows, d_in, WriteMode::Add, b, MatrixView::new(&a, r, d_in), adapter.scale, Precision::F32.on_all_threads());
        all.par_extend(rows.par_chunks(d_in.max(1)).map(length));
    }
    tensor(all, d_out)
}

impl Magnitude<'_> {
    /// Returns `m / |V|`, `[out]`; 0 where a direction has zero length, so that its outputs are 0.
    fn gains(&self) -> Result<Vec<f32>> {
        let (values, lengths) = (read(self.values)?, read(self.lengths)?);
        if values.len() != lengths.len() {
            let detail = format!("{} magnitudes for {} lengths", values.len(), lengths.len());
            return Err(Error::Shape { op: "magnitude", detail });
        }
        Ok(values.iter().zip(lengths.iter()).map(|(m, length)| if *length > 0.0 { m / length } else { 0.0 }).collect())
    }

    fn check(&self, y: &Tensor) -> Result<()> {
        if matrix_dims(y).1 == self.values.elem_count() {
            return Ok(());
        }
        Err(Error::Shape { op: "magnitude", detail: format!("{} for {:?}", self.values.elem_count(), y.shape()) })
    }

    /// Converts `y: [N, out]`, the product of the input with `V`, to that with the layer's weight, and adds the bias `[out]`.
    ///
    /// # Errors
    /// If the shapes don't fit, or the tensors are not on the CPU.
    pub fn apply(&self, y: &Tensor, bias: Option<&Tensor>) -> Result<()> {
        self.check(y)?;
        let gains = self.gains()?;
        let bias = bias.map(|bias| Ok::<_, Error>(read(bias)?.to_vec())).transpose()?;
        write(y, |out| {
            out.par_chunks_mut(gains.len().max(1)).for_each(|row| {
                wide!(for (y, gain) in row.iter_mut().zip(&gains) {
                    *y *= gain;
                });
                if let Some(bias) = &bias {
                    wide!(for (y, b) in row.iter_mut().zip(bias.iter()) {
                        *y += b;
                    });
                }
            });
        })
    }

    /// Returns the gradient of the product with `V`, given that of the layer's output, and adds the magnitudes' to `d_values`. `u` is that
    /// product; both are `[N, out]`.
    ///
    /// # Errors
    /// As [`Magnitude::apply`].
    pub fn backward(&self, u: &Tensor, dy: &Tensor, d_values: Option<&Tensor>) -> Result<Tensor> {
        self.check(u)?;
        self.check(dy)?;
        let (gains, us, dys) = (self.gains()?, read(u)?, read(dy)?);
        let width = gains.len();
        if let Some(d_values) = d_values {
            let lengths = read(self.lengths)?;
            write(d_values, |out| {
                out.par_chunks_mut(OUTPUTS_PER_TASK).enumerate().for_each(|(task, out)| {
                    let first = task * OUTPUTS_PER_TASK;
                    let mut sums = vec![0f32; out.len()];
                    for (u, dy) in us.chunks(width).zip(dys.chunks(width)) {
                        let (u, dy) = (&u[first..first + out.len()], &dy[first..first + out.len()]);
                        wide!(for ((sum, u), dy) in sums.iter_mut().zip(u).zip(dy) {
                            *sum += u * dy;
                        });
                    }
                    let lengths = &lengths[first..first + out.len()];
                    for ((d, sum), length) in out.iter_mut().zip(&sums).zip(lengths).filter(|(_, length)| **length > 0.0) {
                        *d += sum / length;
                    }
                });
            })?;
        }
        let mut du = dys.to_vec();
        du.par_chunks_mut(width.max(1)).for_each(|row| {
            wide!(for (d, gain) in row.iter_mut().zip(&gains) {
                *d *= gain;
            });
        });
        tensor(du, dy.shape())
    }

    /// Scales the rows of `v: [out, in]`, whose lengths these are, so that it becomes the layer's weight.
    ///
    /// # Errors
    /// As [`Magnitude::apply`].
    pub fn scale_rows(&self, v: &Tensor) -> Result<()> {
        let (gains, (d_out, d_in)) = (self.gains()?, matrix_dims(v));
        if d_out != gains.len() {
            return Err(Error::Shape { op: "magnitude", detail: format!("{} for {:?}", gains.len(), v.shape()) });
        }
        write(v, |v| {
            v.par_chunks_mut(d_in.max(1)).zip(&gains).for_each(|(row, gain)| row.iter_mut().for_each(|x| *x *= gain));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::to_vec;
    use candle_core::Device;

    fn matrix(values: &[f32], shape: (usize, usize)) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn lengths_are_those_of_the_weight_with_its_adapter_also_in_several_parts() {
        let w = matrix(&[3.0, 4.0, 0.0, 0.0, -1.0, 2.0], (3, 2));
        let (a, b) = (matrix(&[1.0, 2.0], (1, 2)), matrix(&[0.0, 0.0, 2.0], (3, 1)));
        let adapter = LowRankAdapter { a: &a, b: &b, scale: 0.5, precision: Precision::F32 };
        // The last row is (-1, 2) + (1, 2).
        assert_eq!(to_vec(&lengths(&w, &adapter).unwrap()).unwrap(), [5.0, 0.0, 4.0]);
        let (d_out, d_in) = (3, MOST / 2 + 1);
        let w = Tensor::ones((d_out, d_in), candle_core::DType::F32, &Device::Cpu).unwrap();
        let (a, b) = (Tensor::ones((1, d_in), w.dtype(), w.device()).unwrap(), matrix(&[0.0, 1.0, 2.0], (3, 1)));
        let adapter = LowRankAdapter { a: &a, b: &b, scale: 1.0, precision: Precision::F32 };
        let want: Vec<f32> = (1..4).map(|by| ((d_in as f64).sqrt() * f64::from(by)) as f32).collect();
        assert_eq!(to_vec(&lengths(&w, &adapter).unwrap()).unwrap(), want);
        assert!(lengths(&w, &LowRankAdapter { b: &a, ..adapter }).is_err());
    }

    #[test]
    fn outputs_and_gradients_are_those_of_scaled_directions() {
        let u = matrix(&[1.0, 2.0, 5.0, -3.0, 4.0, 7.0], (2, 3));
        let (values, lengths) = ([6.0f32, 1.0, 3.0], [2.0f32, 4.0, 0.0]);
        let [values, lengths] = [values, lengths].map(|all| Tensor::new(&all, &Device::Cpu).unwrap());
        let magnitude = Magnitude { values: &values, lengths: &lengths };
        let bias = Tensor::new(&[0.5f32, -1.0, 2.0], &Device::Cpu).unwrap();
        let y = u.copy().unwrap();
        magnitude.apply(&y, Some(&bias)).unwrap();
        assert_eq!(to_vec(&y).unwrap(), [3.5, -0.5, 2.0, -8.5, 0.0, 2.0]);
        let (dy, d_values) = (matrix(&[1.0, 8.0, 1.0, 2.0, -4.0, 1.0], (2, 3)), Tensor::ones(3, u.dtype(), u.device()).unwrap());
        let du = magnitude.backward(&u, &dy, Some(&d_values)).unwrap();
        assert_eq!(to_vec(&du).unwrap(), [3.0, 2.0, 0.0, 6.0, -1.0, 0.0]);
        // (1 - 6) / 2 and (16 - 16) / 4, added to one.
        assert_eq!(to_vec(&d_values).unwrap(), [-1.5, 1.0, 1.0]);
        let v = matrix(&[2.0, 0.0, 0.0, 4.0, 0.0, 0.0], (3, 2));
        magnitude.scale_rows(&v).unwrap();
        assert_eq!(to_vec(&v).unwrap(), [6.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        assert!(magnitude.apply(&v, None).is_err() && magnitude.scale_rows(&u).is_err());
    }
}
