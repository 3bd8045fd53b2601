//! `y += s (x A^T) B^T`: a low-rank adapter's contribution to a linear layer (LoRA, Hu et al. 2021, arXiv 2106.09685), with `A:
//! [r, in]` and `B: [out, r]` as in the `peft` package.

#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm::{self, WriteMode, matmul};
use super::slices::{read, tensor, write};
use super::view::{MatrixView, Precision};
use super::weight_storage::{WeightMatrix, WeightValues};
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;

pub use super::adapter::{LowRankAdapter, LowRankGradient};

impl LowRankAdapter<'_> {
    /// Returns rank, inputs and outputs.
    fn dims(&self) -> Result<(usize, usize, usize)> {
        let ((r, d_in), (d_out, b_r)) = (matrix_dims(self.a), matrix_dims(self.b));
        if r != b_r {
            let detail = format!("A {:?} does not fit B {:?}", self.a.shape(), self.b.shape());
            return Err(Error::Shape { op: "low rank", detail });
        }
        Ok((r, d_in, d_out))
    }

    /// Adds the adapter's output for `x: [N, in]` to `y: [N, out]`.
    pub fn forward_into(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (r, d_in, d_out) = self.dims()?;
        let (n, x_in) = matrix_dims(x);
        if x_in != d_in || matrix_dims(y) != (n, d_out) {
            let detail = format!("{:?} to {:?} through {d_in} and {d_out}", x.shape(), y.shape());
            return Err(Error::Shape { op: "low rank", detail });
        }
        on_device!(x, cuda::linear::low_rank_into(self, x, y));
        let (xs, a) = (WeightValues::open(x.into())?, WeightValues::open(self.a.into())?);
        let inner = gemm::linear(xs.rows(x, self.precision)?, &a, r, None, self.precision.on_all_threads());
        self.add_from(&tensor(inner, (n, r))?, y)
    }

    /// Adds the adapter's output to `y: [N, out]`, given `x A^T`, `[N, r]`, on the CPU.
    pub fn add_from(&self, inner: &Tensor, y: &Tensor) -> Result<()> {
        let (r, _, d_out) = self.dims()?;
        let (n, inner_r) = matrix_dims(inner);
        if inner_r != r || matrix_dims(y) != (n, d_out) {
            let detail = format!("{:?} to {:?} through {r} and {d_out}", inner.shape(), y.shape());
            return Err(Error::Shape { op: "low rank", detail });
        }
        let (inner, b) = (read(inner)?, read(self.b)?);
        write(y, |out| {
            let (inner, b) = (MatrixView::new(&inner, n, r), MatrixView::new(&b, d_out, r).t());
            matmul(out, d_out, WriteMode::Add, inner, b, self.scale, self.precision.on_all_threads());
        })
    }

    /// Adds the gradients of the two matrices, given `x: [N, in]` and `dy: [N, out]`, to `gradient`, and that of `x` to `dx`, if these are
    /// given. Recomputes `x A^T`, which is cheaper than storing it.
    pub fn backward(&self, x: &Tensor, dy: &Tensor, gradient: Option<LowRankGradient<'_>>, dx: Option<&Tensor>) -> Result<()> {
        let (r, d_in, d_out) = self.dims()?;
        let (n, x_in) = matrix_dims(x);
        if x_in != d_in || matrix_dims(dy) != (n, d_out) || dx.is_some_and(|dx| matrix_dims(dx) != (n, d_in)) {
            let detail = format!("{:?} with gradient {:?}", x.shape(), dy.shape());
            return Err(Error::Shape { op: "low rank backward", detail });
        }
        on_device!(x, cuda::linear::low_rank_backward(self, x, dy, gradient, dx));
        let (xs, dys, a, b) = (WeightValues::open(x.into())?, WeightValues::open(dy.into())?, read(self.a)?, read(self.b)?);
        let (xs, dys) = (xs.rows(x, self.precision)?, dys.rows(dy, self.precision)?);
        let (a, b) = (MatrixView::new(&a, r, d_in), MatrixView::new(&b, d_out, r));
        // `s dy B` is the gradient of `x A^T`.
        let d_inner = gemm::product(dys, b, self.scale, self.precision.on_all_threads());
        let d_inner = MatrixView::new(&d_inner, n, r);
        if let Some(gradient) = gradient {
            let inner = gemm::linear(xs, &WeightValues::open(self.a.into())?, r, None, self.precision.on_all_threads());
            write(gradient.b, |out| {
                matmul(
                    out,
                    r,
                    WriteMode::Add,
                    dys.t(),
                    MatrixView::new(&inner, n, r),
                    self.scale,
                    self.precision.on_all_threads(),
                );
            })?;
            write(gradient.a, |out| matmul(out, d_in, WriteMode::Add, d_inner.t(), xs, 1.0, self.precision.on_all_threads()))?;
        }
        match dx {
            Some(dx) => write(dx, |out| matmul(out, d_in, WriteMode::Add, d_inner, a, 1.0, self.precision.on_all_threads())),
            None => Ok(()),
        }
    }

    /// Returns `w + s B A`, `[out, in]`, as a new tensor, in f32 on the CPU.
    pub fn merged<'a>(&self, w: impl Into<WeightMatrix<'a>>) -> Result<Tensor> {
        let (r, d_in, d_out) = self.dims()?;
        let w = w.into();
        if w.dims() != (d_out, d_in) {
            return Err(Error::Shape { op: "low rank", detail: format!("{:?} is not {d_out} by {d_in}", w.dims()) });
        }
        on_device!(self.a, cuda::linear::merged(self, w.plain()?));
        let (a, b) = (read(self.a)?, read(self.b)?);
        let mut out = WeightValues::open(w)?.widened(0..d_out * d_in);
        matmul(
            &mut out,
            d_in,
            WriteMode::Add,
            MatrixView::new(&b, d_out, r),
            MatrixView::new(&a, r, d_in),
            self.scale,
            Precision::F32.on_all_threads(),
        );
        tensor(out, (d_out, d_in))
    }
}
