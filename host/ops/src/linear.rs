//! `y = x W^T + b` with the weight in Hugging Face's layout, `W: [out, in]`.

use super::cpu::{read, tensor, write};
#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm::{self, Dst, Mat, all_threads, matmul};
use super::simd::wide;
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;

fn check(op: &'static str, ok: bool, a: &Tensor, b: &Tensor) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::Shape { op, detail: format!("{:?} does not fit {:?}", a.shape(), b.shape()) })
}

/// Computes `[N, out]` from `x: [N, in]`, `w: [out, in]`, `b: [out]`.
pub fn forward(x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
    let ((n, d_in), (d_out, w_in)) = (matrix_dims(x), matrix_dims(w));
    check("linear", d_in == w_in, x, w)?;
    on_device!(x, cuda::linear::forward(x, w, b, cuda::Kind::of(x)?));
    let (xs, ws) = (read(x)?, read(w)?);
    let (x, w) = (Mat::new(&xs, n, d_in), Mat::new(&ws, d_out, d_in));
    let bias = b.map(read).transpose()?;
    if let Some(bias) = bias.as_deref().filter(|bias| bias.len() != d_out) {
        return Err(Error::Shape { op: "linear", detail: format!("a bias of {} values for {d_out} outputs", bias.len()) });
    }
    tensor(gemm::of_rows(x, w, bias.as_deref(), all_threads()), (n, d_out))
}

/// [`forward`] with the result in f32, whatever the type of the inputs.
pub fn forward_f32(x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
    check("linear", matrix_dims(x).1 == matrix_dims(w).1, x, w)?;
    on_device!(x, cuda::linear::forward(x, w, b, cuda::Kind::F32));
    forward(x, w, b)
}

/// Returns `dx = dy W`, a new `[N, in]`.
pub fn backward_input(dy: &Tensor, w: &Tensor) -> Result<Tensor> {
    let ((n, d_out), (w_out, d_in)) = (matrix_dims(dy), matrix_dims(w));
    check("linear backward", d_out == w_out, dy, w)?;
    on_device!(dy, cuda::linear::backward_input(dy, w));
    let (dys, ws) = (read(dy)?, read(w)?);
    let out = gemm::product(Mat::new(&dys, n, d_out), Mat::new(&ws, d_out, d_in), 1.0, all_threads());
    tensor(out, (n, d_in))
}

/// Adds `dx += dy W`, for inputs that several layers read.
pub fn backward_input_into(dx: &Tensor, dy: &Tensor, w: &Tensor) -> Result<()> {
    let ((n, d_out), (w_out, d_in)) = (matrix_dims(dy), matrix_dims(w));
    check("linear backward", d_out == w_out && matrix_dims(dx) == (n, d_in), dy, w)?;
    on_device!(dy, cuda::linear::backward_input_into(dx, dy, w));
    let (dys, ws) = (read(dy)?, read(w)?);
    write(dx, |out| {
        matmul(out, d_in, Dst::Add, Mat::new(&dys, n, d_out), Mat::new(&ws, d_out, d_in), 1.0, all_threads());
    })
}

/// Adds `dw += dy^T x` and `db += sum over rows of dy`. Both are f32, whatever the type of `x` and `dy`.
pub fn backward_weight(x: &Tensor, dy: &Tensor, dw: &Tensor, db: Option<&Tensor>) -> Result<()> {
    let ((n, d_in), (dy_n, d_out)) = (matrix_dims(x), matrix_dims(dy));
    check("linear backward", n == dy_n && matrix_dims(dw) == (d_out, d_in), x, dy)?;
    on_device!(x, cuda::linear::backward_weight(x, dy, dw, db));
    let (xs, dys) = (read(x)?, read(dy)?);
    write(dw, |out| {
        matmul(out, d_in, Dst::Add, Mat::new(&dys, n, d_out).t(), Mat::new(&xs, n, d_in), 1.0, all_threads());
    })?;
    let Some(db) = db else { return Ok(()) };
    write(db, |out| {
        wide!(for row in dys.chunks(d_out) {
            for (o, d) in out.iter_mut().zip(row) {
                *o += d;
            }
        });
    })
}
