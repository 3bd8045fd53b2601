//! Matrix products over strided views: in f32 through the `gemm` crates, in bf16 through this crate's own kernels.

#[cfg(target_arch = "x86_64")]
use super::bf16;
use super::f32_kernel;
use super::slices::{SharedPointer, TensorSlice, filled};
use super::view::{MatrixView, OperandValues, Precision};
use super::weight_storage::WeightValues;
use gemm_common::Parallelism;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Precision and threads of a product.
#[derive(Clone, Copy)]
pub(super) struct GemmMode {
    precision: Precision,
    par: Parallelism,
}

impl Precision {
    /// Computes products in this precision on the calling thread.
    pub(super) fn on_one_thread(self) -> GemmMode {
        GemmMode { precision: self, par: Parallelism::None }
    }

    /// Computes products in this precision on all threads of the pool, if they are large enough.
    pub(super) fn on_all_threads(self) -> GemmMode {
        GemmMode { precision: self, par: Parallelism::Rayon(rayon::current_num_threads()) }
    }
}

/// Whether a product replaces its destination or is added to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteMode {
    Replace,
    Add,
}

/// Minimum number of multiplications for which waking a second thread pays off.
const WORTH_SHARING: usize = 1 << 22;

/// Computes `out (+)= scale * a b` for a row-major `out` with rows `out_stride` apart.
pub(super) fn matmul(
    out: &mut [f32],
    out_stride: usize,
    dst: WriteMode,
    a: MatrixView<'_>,
    b: MatrixView<'_>,
    scale: f32,
    run: GemmMode,
) {
    assert!(a.rows == 0 || b.cols == 0 || (a.rows - 1) * out_stride + b.cols <= out.len(), "destination too small");
    // SAFETY: the destination holds a.rows rows of b.cols values, as just checked, and is borrowed mutably.
    unsafe { matmul_raw(out.as_mut_ptr(), out_stride, dst, a, b, scale, run) }
}

/// Returns `scale * a b` as new row-major values.
pub(super) fn product(a: MatrixView<'_>, b: MatrixView<'_>, scale: f32, run: GemmMode) -> Vec<f32> {
    // SAFETY: the product sets every value of its destination.
    unsafe {
        filled(a.rows * b.cols, |out| {
            if a.cols == 0 {
                out.fill(MaybeUninit::new(0.0));
            }
            matmul_raw(out.as_mut_ptr().cast(), b.cols, WriteMode::Replace, a, b, scale, run);
        })
    }
}

/// Returns `x w^T + b` as new row-major values, `[x.rows, m]`, for a weight with `m` rows and as many columns as `x`.
///
/// For this product, the gemm crate rearranges `w` one value at a time, however few rows `x` has. For `w x^T`, which sums in the same
/// order, it reads `w` in place. That result must then be transposed, which pays off if there are few rows compared with their length.
pub(super) fn linear(x: MatrixView<'_>, w: &WeightValues<'_>, m: usize, bias: Option<&[f32]>, run: GemmMode) -> Vec<f32> {
    let n = x.rows;
    if run.precision == Precision::F32 && n > 1 && 4 * n <= 3 * x.cols {
        let begun = bias.map(|bias| bias.iter().flat_map(|&b| std::iter::repeat_n(b, n)).collect());
        let turned = summed(begun, n * m, |out, dst| {
            w.by_rows((m, x.cols), run.precision, |outputs, w| {
                // SAFETY: these outputs' lines are this part's alone.
                unsafe { matmul_raw(out.at(outputs.start * n), n, dst, w, x.t(), 1.0, run) };
            });
        });
        return transposed(&turned, m, n);
    }
    if x.cols == 0 {
        return bias.map_or_else(|| vec![0.0; n * m], |bias| bias.repeat(n));
    }
    summed(bias.map(|bias| bias.repeat(n)), n * m, |out, dst| {
        w.by_rows((m, x.cols), run.precision, |outputs, w| {
            // SAFETY: these outputs' columns are this part's alone.
            unsafe { matmul_raw(out.at(outputs.start), m, dst, x, w.t(), 1.0, run) };
        });
    })
}

/// One of several weights `[outputs, in]` that are multiplied by the same rows.
pub(super) struct GemmWeight<'a> {
    pub weight: WeightValues<'a>,
    pub outputs: usize,
    /// Bias, `[outputs]`.
    pub bias: Option<TensorSlice<'a>>,
}

/// Multiplies rows by several weights, as [`linear`] does by one. In bf16, rows are rearranged once for all, unless a weight must be
/// widened.
pub(super) fn linear_all(x: MatrixView<'_>, all: &[GemmWeight<'_>], run: GemmMode) -> Vec<Vec<f32>> {
    assert!(all.iter().all(|w| w.bias.as_ref().is_none_or(|bias| bias.len() == w.outputs)), "a bias of another length");
    #[cfg(target_arch = "x86_64")]
    if let (Precision::Bf16, Some(kernel), 1.., 1..) = (run.precision, bf16::kernel(), x.cols, x.rows) {
        let weights: Option<Vec<MatrixView<'_>>> =
            all.iter().map(|w| w.weight.as_operand((w.outputs, x.cols), run.precision)).collect();
        if let Some(weights) = weights {
            let outputs: usize = all.iter().map(|w| w.outputs).sum();
            let threads = !matches!(run.par, Parallelism::None) && x.rows * x.cols * outputs >= WORTH_SHARING;
            // SAFETY: every value is a bias's or set by a product; the views' bounds were checked when they were made, and no two
            // products have a destination in common.
            return unsafe {
                super::slices::filled_all(all.iter().map(|w| x.rows * w.outputs), |outs| {
                    let to = |(w, out): (&GemmWeight<'_>, &SharedPointer)| {
                        if let Some(bias) = &w.bias {
                            (0..x.rows).for_each(|row| {
                                std::ptr::copy_nonoverlapping(bias.as_ptr(), out.at(row * w.outputs), w.outputs);
                            });
                        }
                        bf16::ProductDestination { out: *out, stride: w.outputs, add: w.bias.is_some(), scale: 1.0 }
                    };
                    let operands = weights.iter().map(|w| bf16::Operand::from(*w));
                    let products: Vec<_> = operands.zip(all.iter().zip(outs).map(to)).filter(|(b, _)| b.outer > 0).collect();
                    bf16::products(kernel, x.into(), &products, threads);
                })
            };
        }
    }
    all.iter().map(|w| linear(x, &w.weight, w.outputs, w.bias.as_deref(), run)).collect()
}

/// Returns `x w` as new row-major values, `[x.rows, width]`, for a weight with `x.cols` rows of `width` values.
pub(super) fn matmul_weight(x: MatrixView<'_>, w: &WeightValues<'_>, width: usize, run: GemmMode) -> Vec<f32> {
    if x.cols == 0 {
        return vec![0.0; x.rows * width];
    }
    summed(None, x.rows * width, |out, dst| {
        w.by_columns((x.cols, width), run.precision, |columns, w| {
            // SAFETY: these columns are this part's alone.
            unsafe { matmul_raw(out.at(columns.start), width, dst, x, w, 1.0, run) };
        });
    })
}

/// Returns `n` values: `begun` with products added, if given, or else new ones set by products.
fn summed(begun: Option<Vec<f32>>, n: usize, products: impl FnOnce(SharedPointer, WriteMode)) -> Vec<f32> {
    match begun {
        Some(mut values) => {
            products(SharedPointer::new(&mut values), WriteMode::Add);
            values
        }
        // SAFETY: the products cover all values.
        None => unsafe { filled(n, |out| products(SharedPointer::from_uninit(out), WriteMode::Replace)) },
    }
}

/// Returns the transpose of `[rows, cols]` values.
fn transposed(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    /// Side of the blocks that are transposed at a time: a cache line.
    const SIDE: usize = 16;
    // SAFETY: each value of the destination has one source.
    unsafe {
        filled(rows * cols, |out| {
            let turn = |(first, lines): (usize, &mut [MaybeUninit<f32>])| {
                for from in (0..rows).step_by(SIDE) {
                    for (j, line) in lines.chunks_mut(rows).enumerate() {
                        let to = &mut line[from..(from + SIDE).min(rows)];
                        for (i, value) in to.iter_mut().enumerate() {
                            value.write(values[(from + i) * cols + first * SIDE + j]);
                        }
                    }
                }
            };
            let lines = rows.max(1) * SIDE;
            if rows * cols < WORTH_SHARING / SIDE {
                out.chunks_mut(lines).enumerate().for_each(turn);
            } else {
                out.par_chunks_mut(lines).enumerate().for_each(turn);
            }
        })
    }
}

/// Computes [`matmul`] into memory that several tasks share.
///
/// # Safety
/// `out` points to `a.rows` rows of `b.cols` values, `out_stride` apart, that nothing else reads or writes during the call.
pub(super) unsafe fn matmul_raw(
    out: *mut f32,
    out_stride: usize,
    dst: WriteMode,
    a: MatrixView<'_>,
    b: MatrixView<'_>,
    scale: f32,
    run: GemmMode,
) {
    assert_eq!(a.cols, b.rows, "inner dimensions differ");
    if a.rows == 0 || b.cols == 0 {
        return;
    }
    let worth = a.rows * a.cols * b.cols >= WORTH_SHARING;
    let run = if worth { run } else { run.precision.on_one_thread() };
    if run.precision == Precision::F32 {
        // SAFETY: the caller guarantees the destination.
        return unsafe { in_f32(out, out_stride, dst, a, b, scale, run.par) };
    }
    #[cfg(target_arch = "x86_64")]
    if let (Some(kernel), 1..) = (bf16::kernel(), a.cols) {
        let (a, b) = (bf16::Operand::from(a), bf16::Operand::from(b.t()));
        let to = bf16::ProductDestination {
            out: SharedPointer::from_pointer(out),
            stride: out_stride,
            add: dst == WriteMode::Add,
            scale,
        };
        let threads = !matches!(run.par, Parallelism::None);
        // SAFETY: both operands were bounds-checked when their views were made; the caller guarantees the destination.
        return unsafe { bf16::products(kernel, a, &[(b, to)], threads) };
    }
    let (left, right) = (a.rounded(), b.rounded());
    let (a, b) = (MatrixView::new(&left, a.rows, a.cols), MatrixView::new(&right, b.rows, b.cols));
    // SAFETY: the caller guarantees the destination.
    unsafe { in_f32(out, out_stride, dst, a, b, scale, run.par) };
}

/// Computes [`matmul_raw`] with operands in f32.
unsafe fn in_f32(
    out: *mut f32,
    out_stride: usize,
    dst: WriteMode,
    a: MatrixView<'_>,
    b: MatrixView<'_>,
    scale: f32,
    par: Parallelism,
) {
    let signed = |stride: usize| stride as isize;
    // The kernel prefers columns, but the destination has rows. So it computes the transpose unless rows are single values.
    let (a, b, (column_stride, row_stride)) =
        if out_stride > 1 { (b.t(), a.t(), (signed(out_stride), 1)) } else { (a, b, (1, signed(out_stride))) };
    let (OperandValues::F32(left), OperandValues::F32(right)) = (a.data, b.data) else {
        unreachable!("bf16 operands of a product in f32")
    };
    // SAFETY: both operands were bounds-checked when their views were made; the caller guarantees the destination.
    unsafe {
        f32_kernel::kernel()(
            a.rows,
            b.cols,
            a.cols,
            out,
            column_stride,
            row_stride,
            dst == WriteMode::Add,
            left.as_ptr(),
            signed(a.col_stride),
            signed(a.row_stride),
            right.as_ptr(),
            signed(b.col_stride),
            signed(b.row_stride),
            1.0,
            scale,
            false,
            false,
            false,
            par,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::read;
    use candle_core::{Device, Tensor};

    fn values(n: usize, step: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * step) % 101) as f32 / 50.0 - 1.0).collect()
    }

    #[test]
    fn a_product_of_rows_is_the_same_turned_or_not() {
        // Few and many rows, sizes that are not multiples of a block, one that threads share.
        for (n, k, m) in
            [(1, 8, 3), (2, 8, 3), (6, 8, 1), (7, 8, 5), (17, 96, 33), (40, 1024, 700), (300, 64, 40), (0, 4, 3), (3, 8, 0)]
        {
            let (x, w, bias) = (values(n * k, 7), values(m * k, 13), values(m, 29));
            let weight = Tensor::from_vec(w.clone(), (m, k), &Device::Cpu).unwrap();
            for bias in [None, Some(&bias[..])] {
                let got = linear(
                    MatrixView::new(&x, n, k),
                    &WeightValues::open((&weight).into()).unwrap(),
                    m,
                    bias,
                    Precision::F32.on_all_threads(),
                );
                let dot = |i: usize, j: usize| (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l])).sum::<f64>();
                let wanted = |i: usize, j: usize| dot(i, j) + bias.map_or(0.0, |bias| f64::from(bias[j]));
                assert_eq!(got.len(), n * m);
                for (i, j) in (0..n).flat_map(|i| (0..m).map(move |j| (i, j))) {
                    let off = (f64::from(got[i * m + j]) - wanted(i, j)).abs();
                    assert!(off < 1e-6 * k as f64, "{n} {k} {m}: {i} {j} is off by {off}");
                }
            }
        }
    }

    #[test]
    fn weights_that_are_multiplied_together_give_the_bits_of_each_alone() {
        let tensor = |n: usize, step, k: usize| Tensor::from_vec(values(n * k, step), (n, k), &Device::Cpu).unwrap();
        for (n, k) in [(0, 40), (1, 40), (40, 32), (1560, 96), (70, 1100)] {
            let x = values(n * k, 7);
            let x = MatrixView::new(&x, n, k);
            let plain: Vec<Tensor> =
                [(64, 13), (16, 29), (0, 3), (33, 31)].map(|(outputs, step)| tensor(outputs, step, k)).to_vec();
            let half = plain[0].to_dtype(candle_core::DType::BF16).unwrap();
            let wide = plain[3].to_dtype(candle_core::DType::F16).unwrap();
            let biases: Vec<Tensor> = plain.iter().map(|w| tensor(w.dims()[0], 17, 1)).collect();
            // The last weight must be widened, and some have biases.
            for all in [&[][..], &[&plain[0]], &[&plain[0], &plain[1], &plain[2], &half, &plain[3]], &[&half, &wide, &plain[1]]] {
                for precision in [Precision::F32, Precision::Bf16] {
                    let weights = all.iter().enumerate().map(|(i, w)| GemmWeight {
                        weight: WeightValues::open((*w).into()).unwrap(),
                        outputs: w.dims()[0],
                        bias: biases.iter().find(|b| i % 2 == 0 && b.dims()[0] == w.dims()[0]).map(|b| read(b).unwrap()),
                    });
                    let weights: Vec<GemmWeight<'_>> = weights.collect();
                    let run = precision.on_all_threads();
                    let alone = |w: &GemmWeight<'_>| linear(x, &w.weight, w.outputs, w.bias.as_deref(), run);
                    let want: Vec<Vec<f32>> = weights.iter().map(alone).collect();
                    assert_eq!(linear_all(x, &weights, run), want, "{n} rows of {k}, {} weights, {precision:?}", all.len());
                }
            }
        }
    }

    #[test]
    fn products_in_bf16_are_those_of_rounded_operands() {
        let sizes = [
            (1, 1, 1),
            (16, 32, 16),
            (17, 33, 15),
            (40, 1100, 70),
            (70, 513, 16),
            (1040, 64, 33),
            (130, 700, 1100),
            (1550, 1024, 33),
        ];
        for (m, k, n) in sizes {
            // Operands in row-major and column-major order.
            let (a, b) = (values(m * k, 7), values(k * n, 13));
            let (left, right) = (
                [MatrixView::new(&a, m, k), MatrixView::new(&a, k, m).t()],
                [MatrixView::new(&b, k, n), MatrixView::new(&b, n, k).t()],
            );
            for (a, b) in left.into_iter().flat_map(|a| right.map(|b| (a, b))) {
                let (of_a, of_b) = (a.rounded(), b.rounded());
                let wanted =
                    product(MatrixView::new(&of_a, m, k), MatrixView::new(&of_b, k, n), 1.0, Precision::F32.on_all_threads());
                for (run, scale, dst) in [
                    (Precision::Bf16.on_one_thread(), 1.0, WriteMode::Replace),
                    (Precision::Bf16.on_all_threads(), 0.5, WriteMode::Add),
                    (Precision::Bf16.on_all_threads(), 1.0, WriteMode::Add),
                ] {
                    let stride = n + 3;
                    let mut out = vec![2.0; m * stride];
                    matmul(&mut out, stride, dst, a, b, scale, run);
                    for (got, wanted) in out.chunks(stride).zip(wanted.chunks(n)) {
                        assert!(got[n..].iter().all(|x| *x == 2.0), "something beside the destination was written");
                        for (got, wanted) in got.iter().zip(wanted) {
                            let wanted = scale * wanted + if dst == WriteMode::Add { 2.0 } else { 0.0 };
                            assert!((got - wanted).abs() < 1e-6 * k as f32 + 1e-6, "{m} {k} {n}: {got}, not {wanted}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_are_seen_in_bf16() {
        for bad in [f32::NAN, f32::from_bits(0x7fff_ffff), f32::INFINITY] {
            let (mut a, b) = (values(20 * 40, 3), values(40 * 20, 5));
            a[7 * 40 + 11] = bad;
            let out = product(MatrixView::new(&a, 20, 40), MatrixView::new(&b, 40, 20), 1.0, Precision::Bf16.on_one_thread());
            for (i, row) in out.chunks(20).enumerate() {
                assert!(row.iter().all(|x| x.is_finite() == (i != 7)), "row {i} for {bad}: {row:?}");
            }
        }
    }

    #[test]
    fn a_transpose_moves_every_value() {
        for (rows, cols) in [(0, 3), (3, 0), (1, 1), (1, 40), (40, 1), (16, 16), (17, 33), (700, 900)] {
            let values: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
            let turned = transposed(&values, rows, cols);
            assert!((0..rows).all(|i| (0..cols).all(|j| turned[j * rows + i] == values[i * cols + j])), "{rows} {cols}");
        }
    }
}
