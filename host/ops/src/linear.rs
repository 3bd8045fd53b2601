//! `y = x W^T + b` with the weight in Hugging Face's layout, `W: [out, in]`. On the CPU, the weight may have fewer bits than the f32 or
//! bf16 in which products are computed ([`Precision`]; on a device, the tensors' own). Rows may already be in bf16 for products in bf16,
//! with the same results.

#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm::{self, GemmWeight, WriteMode, matmul};
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, TensorSlice, read, tensor, write};
use super::view::Precision;
use super::weight_storage::{WeightMatrix, WeightValues};
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;

fn check(op: &'static str, ok: bool, a: &Tensor, b: (usize, usize)) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::Shape { op, detail: format!("{:?} does not fit {b:?}", a.shape()) })
}

/// Opens the bias of `outputs` outputs.
fn bias(b: Option<&Tensor>, outputs: usize) -> Result<Option<TensorSlice<'_>>> {
    let bias = b.map(read).transpose()?;
    match bias.as_deref().filter(|bias| bias.len() != outputs) {
        Some(bias) => {
            Err(Error::Shape { op: "linear", detail: format!("a bias of {} values for {outputs} outputs", bias.len()) })
        }
        None => Ok(bias),
    }
}

/// Computes `[N, out]` from `x: [N, in]`, `w: [out, in]`, `b: [out]`.
pub fn forward<'a>(x: &Tensor, w: impl Into<WeightMatrix<'a>>, b: Option<&Tensor>, precision: Precision) -> Result<Tensor> {
    let w = w.into();
    let ((n, d_in), (d_out, w_in)) = (matrix_dims(x), w.dims());
    check("linear", d_in == w_in, x, w.dims())?;
    on_device!(x, cuda::linear::forward(x, w.plain()?, b, cuda::ElementKind::from_tensor(x)?));
    let (xs, ws) = (WeightValues::open(x.into())?, WeightValues::open(w)?);
    let bias = bias(b, d_out)?;
    tensor(gemm::linear(xs.rows(x, precision)?, &ws, d_out, bias.as_deref(), precision.on_all_threads()), (n, d_out))
}

/// Computes `x w^T + b`, `[N, out]`, for several weights `[out, in]`, each with its bias `[out]`. The rows of `x` are prepared once for
/// all.
pub fn forward_all(x: &Tensor, all: &[(WeightMatrix<'_>, Option<&Tensor>)], precision: Precision) -> Result<Vec<Tensor>> {
    if !x.device().is_cpu() {
        return all.iter().map(|(w, b)| forward(x, *w, *b, precision)).collect();
    }
    let (n, d_in) = matrix_dims(x);
    let xs = WeightValues::open(x.into())?;
    let weights = all.iter().map(|(w, b)| {
        let (outputs, w_in) = w.dims();
        check("linear", d_in == w_in, x, (outputs, w_in))?;
        Ok(GemmWeight { weight: WeightValues::open(*w)?, outputs, bias: bias(*b, outputs)? })
    });
    let weights: Vec<GemmWeight<'_>> = weights.collect::<Result<_>>()?;
    let results = gemm::linear_all(xs.rows(x, precision)?, &weights, precision.on_all_threads());
    results.into_iter().zip(&weights).map(|(out, w)| tensor(out, (n, w.outputs))).collect()
}

/// Computes [`forward`] with the result in f32, whatever the type of the inputs.
pub fn forward_f32(x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
    check("linear", matrix_dims(x).1 == matrix_dims(w).1, x, matrix_dims(w))?;
    on_device!(x, cuda::linear::forward(x, w, b, cuda::ElementKind::F32));
    forward(x, w, b, Precision::F32)
}

/// Returns `dx = dy W`, a new `[N, in]`.
pub fn backward_input<'a>(dy: &Tensor, w: impl Into<WeightMatrix<'a>>, precision: Precision) -> Result<Tensor> {
    let w = w.into();
    let ((n, d_out), (w_out, d_in)) = (matrix_dims(dy), w.dims());
    check("linear backward", d_out == w_out, dy, w.dims())?;
    on_device!(dy, cuda::linear::backward_input(dy, w.plain()?));
    let (dys, ws) = (WeightValues::open(dy.into())?, WeightValues::open(w)?);
    tensor(gemm::matmul_weight(dys.rows(dy, precision)?, &ws, d_in, precision.on_all_threads()), (n, d_in))
}

/// Adds `dx += dy W`, for inputs that several layers read.
pub fn backward_input_into<'a>(dx: &Tensor, dy: &Tensor, w: impl Into<WeightMatrix<'a>>, precision: Precision) -> Result<()> {
    let w = w.into();
    let ((n, d_out), (w_out, d_in)) = (matrix_dims(dy), w.dims());
    check("linear backward", d_out == w_out && matrix_dims(dx) == (n, d_in), dy, w.dims())?;
    on_device!(dy, cuda::linear::backward_input_into(dx, dy, w.plain()?));
    let (dys, ws) = (WeightValues::open(dy.into())?, WeightValues::open(w)?);
    let dys = dys.rows(dy, precision)?;
    write(dx, |out| {
        ws.by_columns((d_out, d_in), precision, |columns, w| {
            matmul(&mut out[columns.start..], d_in, WriteMode::Add, dys, w, 1.0, precision.on_all_threads());
        });
    })
}

/// Adds `dw += dy^T x` and `db += sum over rows of dy`. Both are f32, whatever the type of `x` and `dy`.
pub fn backward_weight(x: &Tensor, dy: &Tensor, dw: &Tensor, db: Option<&Tensor>, precision: Precision) -> Result<()> {
    let ((n, d_in), (dy_n, d_out)) = (matrix_dims(x), matrix_dims(dy));
    check("linear backward", n == dy_n && matrix_dims(dw) == (d_out, d_in), x, (dy_n, d_out))?;
    on_device!(x, cuda::linear::backward_weight(x, dy, dw, db));
    let (xs, dys) = (WeightValues::open(x.into())?, WeightValues::open(dy.into())?);
    let (rows, d_rows) = (xs.rows(x, precision)?, dys.rows(dy, precision)?);
    write(dw, |out| matmul(out, d_in, WriteMode::Add, d_rows.t(), rows, 1.0, precision.on_all_threads()))?;
    let Some(db) = db else { return Ok(()) };
    write(db, |out| {
        for first in (0..n * d_out).step_by(d_out.max(1) * ROWS_PER_TASK) {
            let dys = dys.values(first..(n * d_out).min(first + d_out * ROWS_PER_TASK));
            wide!(for row in dys.chunks(d_out) {
                for (o, d) in out.iter_mut().zip(row) {
                    *o += d;
                }
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::{QuantizationScheme, QuantizedWeight};
    use crate::testing::random;
    use crate::to_vec;
    use candle_core::DType;

    /// Results of all products with a weight.
    fn products<'a>(w: impl Into<WeightMatrix<'a>>, x: &Tensor, dy: &Tensor, bias: &Tensor) -> [Vec<f32>; 4] {
        let precision = Precision::F32;
        let w = w.into();
        let dx = x.copy().unwrap();
        backward_input_into(&dx, dy, w, precision).unwrap();
        let results =
            [forward(x, w, None, precision), forward(x, w, Some(bias), precision), backward_input(dy, w, precision), Ok(dx)];
        results.map(|result| to_vec(&result.unwrap()).unwrap())
    }

    #[test]
    fn rows_in_bf16_have_the_bits_of_rows_that_products_round() {
        for (n, d_in, d_out) in [(1, 64, 96), (70, 66, 33), (300, 128, 70)] {
            let (x, dy, w) = (random(&[n, d_in]), random(&[n, d_out]), random(&[d_out, d_in]));
            let halves = |t: &Tensor| t.to_dtype(DType::BF16).unwrap();
            let results = |x: &Tensor, dy: &Tensor, precision| -> Result<Vec<Vec<f32>>> {
                let (dw, dx) = (random(&[d_out, d_in]).zeros_like()?, random(&[n, d_in]).zeros_like()?);
                backward_weight(x, dy, &dw, None, precision)?;
                backward_input_into(&dx, dy, &w, precision)?;
                let all = forward_all(x, &[((&w).into(), None)], precision)?;
                let one = [forward(x, &w, None, precision)?, backward_input(dy, &w, precision)?, dw, dx];
                all.iter().chain(&one).map(to_vec).collect()
            };
            let want = results(&x, &dy, Precision::Bf16).unwrap();
            for (x, dy) in [(&halves(&x), &dy), (&x, &halves(&dy)), (&halves(&x), &halves(&dy))] {
                assert_eq!(results(x, dy, Precision::Bf16).unwrap(), want, "{n} rows, {d_in} to {d_out}");
                assert!(results(x, dy, Precision::F32).is_err(), "products in f32 would have to widen them");
            }
            // The gradient of a bias sums the given values, which are not rounded.
            let (db, rounded) = (random(&[d_out]).zeros_like().unwrap(), halves(&dy).to_dtype(DType::F32).unwrap());
            backward_weight(&x, &halves(&dy), &w.zeros_like().unwrap(), Some(&db), Precision::Bf16).unwrap();
            let want: Vec<f32> =
                (0..d_out).map(|o| to_vec(&rounded).unwrap().chunks(d_out).fold(0.0, |sum, row| sum + row[o])).collect();
            assert_eq!(to_vec(&db).unwrap(), want);
        }
    }

    #[test]
    fn weights_in_fewer_bits_give_the_bits_of_their_values_in_f32() {
        // Few and many rows, and weights that are widened in several parts, by rows and by columns.
        for (n, d_in, d_out) in [(1, 64, 96), (5, 66, 33), (40, 128, 70), (9, 900, 5000), (3, 5000, 901)] {
            let (x, dy, bias, w) = (random(&[n, d_in]), random(&[n, d_out]), random(&[d_out]), random(&[d_out, d_in]));
            for dtype in [DType::BF16, DType::F16] {
                let half = w.to_dtype(dtype).unwrap();
                let wide = half.to_dtype(DType::F32).unwrap();
                let (got, want) = (products(&half, &x, &dy, &bias), products(&wide, &x, &dy, &bias));
                assert!(got == want, "{dtype:?}: {n} rows, {d_in} to {d_out}");
            }
            for scheme in [QuantizationScheme::Int8, QuantizationScheme::Nf4].into_iter().filter(|_| d_in % 2 == 0) {
                let (codes, scales) = scheme.quantize(&w).unwrap();
                let few = WeightMatrix::Quantized(QuantizedWeight { codes: &codes, scales: &scales, scheme });
                let wide = few.in_f32().unwrap();
                let (got, want) = (products(few, &x, &dy, &bias), products(&wide, &x, &dy, &bias));
                assert!(got == want, "{scheme:?}: {n} rows, {d_in} to {d_out}");
            }
        }
    }
}
