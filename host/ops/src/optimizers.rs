//! Updates a parameter by the optimizers other than AdamW. CPU only. Sums over a parameter have a fixed order.

use super::gemm::product;
use super::reduce::squares;
use super::slices::{read, write};
use super::view::{MatrixView, Precision};
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// Number of values per task.
const CHUNK: usize = 1 << 14;

/// Number of rows per task when columns are summed; constant, so that the order of the sums is too.
const ROWS: usize = 256;

/// Scalars of every update rule.
#[derive(Clone, Copy, Debug)]
pub struct CommonScalars {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Factor of the gradient (clipping).
    pub grad_scale: f32,
    /// Number of this update, from 1.
    pub t: u64,
}

impl CommonScalars {
    /// Returns the factor of the parameter with decoupled decay.
    fn decay(&self) -> f32 {
        (1.0 - self.lr * self.weight_decay) as f32
    }
}

/// Stochastic gradient descent, as in torch: the decay is part of the gradient.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Decay of the buffer.
    pub momentum: f64,
    /// Dampening: the fraction of the gradient that is not added to the buffer.
    pub dampening: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

/// RMSprop (Tieleman and Hinton 2012), as in torch: the decay is part of the gradient.
#[derive(Clone, Copy, Debug)]
pub struct RmsProp {
    /// Decay of the mean of squared gradients.
    pub alpha: f64,
    /// Epsilon added to the root of the mean.
    pub eps: f64,
    /// Decay of the buffer.
    pub momentum: f64,
}

/// Lion (Chen et al. 2023, arXiv 2302.06675).
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// Weight of the moment in the update.
    pub beta1: f64,
    /// Decay of the moment.
    pub beta2: f64,
}

/// Adafactor (Shazeer and Stern 2018, arXiv 1804.04235), with a learning rate from the schedule.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    /// Epsilon added to the squared gradient.
    pub eps: f64,
    /// Maximum root mean square of an update.
    pub clip_threshold: f64,
    /// Exponent of the second moment's decay.
    pub decay_rate: f64,
    /// Decay of the first moment, if there is one.
    pub beta1: Option<f64>,
    /// Whether to scale the rate by the parameter's root mean square, and the minimum of that scale.
    pub scale_parameter: Option<f64>,
}

/// The second moment of [`adafactor`].
#[derive(Clone, Copy, Debug)]
pub enum SecondMoment<'a> {
    /// Means over the rows and the columns of a matrix.
    Factored {
        /// Mean of each row.
        rows: &'a Tensor,
        /// Mean of each column.
        columns: &'a Tensor,
    },
    /// Mean of each value.
    Full(&'a Tensor),
}

/// Muon (Jordan 2024), for matrices.
#[derive(Clone, Copy, Debug)]
pub struct Muon {
    /// Decay of the buffer.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Number of iterations of the orthogonalization.
    pub ns_steps: usize,
    /// Factor of the learning rate for the orthogonalized update.
    pub adjusted: f64,
}

/// Returns an error if the tensors of an update have different sizes.
fn check(op: &'static str, param: &Tensor, others: &[&Tensor]) -> Result<()> {
    match others.iter().find(|t| t.elem_count() != param.elem_count()) {
        Some(other) => Err(Error::Shape { op, detail: format!("parameter {:?} with {:?}", param.shape(), other.shape()) }),
        None => Ok(()),
    }
}

/// Updates `param` in place, and its `buffer` if there is momentum.
///
/// # Errors
/// If sizes differ, or the tensors are not on the CPU.
pub fn sgd(param: &Tensor, grad: &Tensor, buffer: Option<&Tensor>, rule: Sgd, s: CommonScalars) -> Result<()> {
    check("sgd", param, &[grad])?;
    let grads = read(grad)?;
    let (scale, decay, lr) = (s.grad_scale, s.weight_decay as f32, s.lr as f32);
    let Some(buffer) = buffer else {
        return write(param, |ps| {
            ps.par_chunks_mut(CHUNK).zip(grads.par_chunks(CHUNK)).for_each(|(ps, gs)| {
                for (p, g) in ps.iter_mut().zip(gs) {
                    *p -= lr * (g * scale + decay * *p);
                }
            });
        });
    };
    check("sgd", param, &[buffer])?;
    // The first gradient is copied to the buffer, without dampening.
    let (momentum, share) = if s.t == 1 { (0.0, 1.0) } else { (rule.momentum as f32, 1.0 - rule.dampening as f32) };
    let ahead = rule.nesterov.then_some(rule.momentum as f32);
    write_both(param, buffer, |ps, bs| {
        let chunks = ps.par_chunks_mut(CHUNK).zip(bs.par_chunks_mut(CHUNK)).zip(grads.par_chunks(CHUNK));
        chunks.for_each(|((ps, bs), gs)| {
            for ((p, b), g) in ps.iter_mut().zip(bs).zip(gs) {
                let g = g * scale + decay * *p;
                *b = momentum * *b + share * g;
                *p -= lr * ahead.map_or(*b, |ahead| g + ahead * *b);
            }
        });
    })
}

/// Updates `param`, the mean `square` of its squared gradients, and its `buffer` if there is momentum, in place.
///
/// # Errors
/// As [`sgd`].
pub fn rmsprop(
    param: &Tensor,
    grad: &Tensor,
    (square, buffer): (&Tensor, Option<&Tensor>),
    rule: RmsProp,
    s: CommonScalars,
) -> Result<()> {
    check("rmsprop", param, &[grad, square])?;
    let grads = read(grad)?;
    let (scale, decay, lr) = (s.grad_scale, s.weight_decay as f32, s.lr as f32);
    let (alpha, new, eps) = (rule.alpha as f32, (1.0 - rule.alpha) as f32, rule.eps as f32);
    let update = |p: f32, v: &mut f32, g: f32| {
        let g = g * scale + decay * p;
        *v = alpha * *v + new * g * g;
        g / (v.sqrt() + eps)
    };
    let Some(buffer) = buffer else {
        return write_both(param, square, |ps, vs| {
            let chunks = ps.par_chunks_mut(CHUNK).zip(vs.par_chunks_mut(CHUNK)).zip(grads.par_chunks(CHUNK));
            chunks.for_each(|((ps, vs), gs)| {
                for ((p, v), g) in ps.iter_mut().zip(vs).zip(gs) {
                    *p -= lr * update(*p, v, *g);
                }
            });
        });
    };
    check("rmsprop", param, &[buffer])?;
    let (momentum, mut updated) = (rule.momentum as f32, Ok(()));
    write(buffer, |bs| {
        updated = write_both(param, square, |ps, vs| {
            let chunks = ps.par_chunks_mut(CHUNK).zip(vs.par_chunks_mut(CHUNK)).zip(bs.par_chunks_mut(CHUNK));
            chunks.zip(grads.par_chunks(CHUNK)).for_each(|(((ps, vs), bs), gs)| {
                for (((p, v), b), g) in ps.iter_mut().zip(vs).zip(bs).zip(gs) {
                    *b = momentum * *b + update(*p, v, *g);
                    *p -= lr * *b;
                }
            });
        });
    })?;
    updated
}

/// Updates `param` and its moment in place.
///
/// # Errors
/// As [`sgd`].
pub fn lion(param: &Tensor, grad: &Tensor, moment: &Tensor, rule: Lion, s: CommonScalars) -> Result<()> {
    check("lion", param, &[grad, moment])?;
    let grads = read(grad)?;
    let (scale, decay, lr) = (s.grad_scale, s.decay(), s.lr as f32);
    let (b1, b2) = (rule.beta1 as f32, rule.beta2 as f32);
    write_both(param, moment, |ps, ms| {
        let chunks = ps.par_chunks_mut(CHUNK).zip(ms.par_chunks_mut(CHUNK)).zip(grads.par_chunks(CHUNK));
        chunks.for_each(|((ps, ms), gs)| {
            for ((p, m), g) in ps.iter_mut().zip(ms).zip(gs) {
                let g = g * scale;
                let direction = b1 * *m + (1.0 - b1) * g;
                let sign = if direction > 0.0 {
                    1.0
                } else if direction < 0.0 {
                    -1.0
                } else {
                    0.0
                };
                *p = *p * decay - lr * sign;
                *m = b2 * *m + (1.0 - b2) * g;
            }
        });
    })
}

/// Updates `param`, its second moment, and its first moment if there is one, in place.
///
/// # Errors
/// As [`sgd`].
pub fn adafactor(
    param: &Tensor,
    grad: &Tensor,
    second: SecondMoment<'_>,
    first: Option<&Tensor>,
    rule: Adafactor,
    s: CommonScalars,
) -> Result<()> {
    check("adafactor", param, &[grad])?;
    let grads = read(grad)?;
    let direction = AdafactorDirection::new(param, &grads, second, rule, s)?;
    let n = param.elem_count().max(1) as f64;
    let of_parameter = match rule.scale_parameter {
        Some(least) => (squares(param)? / n).sqrt().max(least),
        None => 1.0,
    };
    let lr = s.lr * of_parameter;
    let rms = (direction.squares() / n).sqrt();
    let (factor, decay) = (lr / (rms / rule.clip_threshold).max(1.0), (1.0 - s.weight_decay * lr) as f32);
    let Some((first, beta1)) = first.zip(rule.beta1) else {
        return write(param, |ps| {
            ps.par_chunks_mut(CHUNK).enumerate().for_each(|(part, ps)| {
                for (i, p) in ps.iter_mut().enumerate() {
                    *p = *p * decay - (direction.at(part * CHUNK + i) * factor) as f32;
                }
            });
        });
    };
    check("adafactor", param, &[first])?;
    write_both(param, first, |ps, ms| {
        ps.par_chunks_mut(CHUNK).zip(ms.par_chunks_mut(CHUNK)).enumerate().for_each(|(part, (ps, ms))| {
            for (i, (p, m)) in ps.iter_mut().zip(ms).enumerate() {
                let update = direction.at(part * CHUNK + i) * factor;
                *m = (beta1 * f64::from(*m) + (1.0 - beta1) * update) as f32;
                *p = *p * decay - *m;
            }
        });
    })
}

/// A gradient divided by the root of its second moment.
struct AdafactorDirection<'a> {
    gradient: &'a [f32],
    scale: f64,
    /// Factor of each row; empty if there is one for each value.
    rows: Vec<f64>,
    columns: Vec<f64>,
}

impl<'a> AdafactorDirection<'a> {
    /// Updates the second moment and divides the gradient by its root.
    fn new(param: &Tensor, gradient: &'a [f32], second: SecondMoment<'_>, rule: Adafactor, s: CommonScalars) -> Result<Self> {
        let (scale, kept) = (f64::from(s.grad_scale), 1.0 - (s.t as f64).powf(rule.decay_rate));
        let squared = |g: f32| (f64::from(g) * scale).powi(2) + rule.eps;
        let mixed = |old: f32, new: f64| (kept * f64::from(old) + (1.0 - kept) * new) as f32;
        let inverse_root = |t: &Tensor, by: f64| -> Result<Vec<f64>> {
            Ok(read(t)?.iter().map(|v| (f64::from(*v) / by).sqrt().recip()).collect())
        };
        match second {
            SecondMoment::Full(v) => {
                check("adafactor", param, &[v])?;
                write(v, |vs| vs.par_iter_mut().zip(gradient.par_iter()).for_each(|(v, g)| *v = mixed(*v, squared(*g))))?;
                Ok(Self { gradient, scale, rows: Vec::new(), columns: inverse_root(v, 1.0)? })
            }
            SecondMoment::Factored { rows, columns } => {
                let (height, width) = matrix_dims(param);
                if rows.elem_count() != height || columns.elem_count() != width {
                    let detail = format!("{:?} and {:?} for {height} by {width}", rows.shape(), columns.shape());
                    return Err(Error::Shape { op: "adafactor", detail });
                }
                let of_row = |row: &[f32]| row.iter().map(|g| squared(*g)).sum::<f64>() / width as f64;
                let means: Vec<f64> = gradient.par_chunks(width).map(of_row).collect();
                write(rows, |rs| rs.iter_mut().zip(&means).for_each(|(r, mean)| *r = mixed(*r, *mean)))?;
                let sums: Vec<Vec<f64>> =
                    gradient.par_chunks(ROWS * width).map(|some| column_sums(some, width, squared)).collect();
                let mean = |j: usize| sums.iter().map(|part| part[j]).sum::<f64>() / height as f64;
                write(columns, |cs| cs.iter_mut().enumerate().for_each(|(j, c)| *c = mixed(*c, mean(j))))?;
                let of_rows = read(rows)?.iter().map(|r| f64::from(*r)).sum::<f64>() / height as f64;
                Ok(Self { gradient, scale, rows: inverse_root(rows, of_rows)?, columns: inverse_root(columns, 1.0)? })
            }
        }
    }

    fn at(&self, i: usize) -> f64 {
        let width = self.columns.len();
        let row = self.rows.get(i / width).copied().unwrap_or(1.0);
        row * self.columns[i % width] * f64::from(self.gradient[i]) * self.scale
    }

    /// Returns the sum of squares.
    fn squares(&self) -> f64 {
        let n = self.gradient.len();
        let part = |part: usize| (part * CHUNK..n.min((part + 1) * CHUNK)).map(|i| self.at(i).powi(2)).sum::<f64>();
        let parts: Vec<f64> = (0..n.div_ceil(CHUNK)).into_par_iter().map(part).collect();
        parts.iter().sum()
    }
}

fn column_sums(values: &[f32], width: usize, of: impl Fn(f32) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; width];
    for row in values.chunks(width) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += of(*value));
    }
    sums
}

/// Updates a matrix and its buffer in place.
///
/// # Errors
/// As [`sgd`].
pub fn muon(param: &Tensor, grad: &Tensor, buffer: &Tensor, rule: Muon, s: CommonScalars) -> Result<()> {
    check("muon", param, &[grad, buffer])?;
    let (height, width) = matrix_dims(param);
    let (grads, momentum, scale) = (read(grad)?, rule.momentum as f32, s.grad_scale);
    let mut update = vec![0f32; height * width];
    write(buffer, |bs| {
        update.par_iter_mut().zip(bs.par_iter_mut()).zip(grads.par_iter()).for_each(|((u, b), g)| {
            let g = g * scale;
            *b += (1.0 - momentum) * (g - *b);
            *u = if rule.nesterov { g + momentum * (*b - g) } else { *b };
        });
    })?;
    let update = orthogonalized(update, height, width, rule.ns_steps);
    let (decay, step) = (s.decay(), (s.lr * rule.adjusted) as f32);
    write(param, |ps| ps.par_iter_mut().zip(update.par_iter()).for_each(|(p, u)| *p = *p * decay - step * u))
}

/// Returns a matrix whose singular values the Newton-Schulz iteration has brought close to one.
fn orthogonalized(mut x: Vec<f32>, height: usize, width: usize, steps: usize) -> Vec<f32> {
    /// Jordan's coefficients of the iteration.
    const COEFFICIENTS: (f32, f32, f32) = (3.4445, -4.775, 2.0315);
    /// Minimum norm by which a matrix is divided.
    const EPS: f64 = 1e-7;
    let tall = height > width;
    if tall {
        x = transposed(&x, height, width);
    }
    let (n, k) = if tall { (width, height) } else { (height, width) };
    let norm = x.chunks(CHUNK).map(|part| part.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>()).sum::<f64>().sqrt().max(EPS);
    x.iter_mut().for_each(|v| *v = (f64::from(*v) / norm) as f32);
    let (a, b, c) = COEFFICIENTS;
    for _ in 0..steps {
        let gram = product(MatrixView::new(&x, n, k), MatrixView::new(&x, n, k).t(), 1.0, Precision::F32.on_all_threads());
        let mut polynomial =
            product(MatrixView::new(&gram, n, n), MatrixView::new(&gram, n, n), c, Precision::F32.on_all_threads());
        polynomial.iter_mut().zip(&gram).for_each(|(p, g)| *p += b * g);
        let mut next =
            product(MatrixView::new(&polynomial, n, n), MatrixView::new(&x, n, k), 1.0, Precision::F32.on_all_threads());
        next.iter_mut().zip(&x).for_each(|(next, x)| *next += a * x);
        x = next;
    }
    if tall { transposed(&x, n, k) } else { x }
}

fn transposed(x: &[f32], height: usize, width: usize) -> Vec<f32> {
    (0..height * width).map(|i| x[i % height * width + i / height]).collect()
}

/// Changes two tensors of the same size in place.
fn write_both(a: &Tensor, b: &Tensor, change: impl FnOnce(&mut [f32], &mut [f32])) -> Result<()> {
    let mut outcome = Ok(());
    write(a, |a| outcome = write(b, |b| change(a, b)))?;
    outcome
}
