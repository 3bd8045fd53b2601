//! Matrix products of operands rounded to bf16, summed in f32: with AMX tiles if the processor has them, otherwise with AVX-512's
//! `vdpbf16ps`. On other processors, [`supported`] returns false.
//!
//! Both operands are rearranged into blocks of 16 rows or columns by 32 inner values, and rounded on the way if they are f32. A kernel sums
//! up to two blocks of rows with up to two of columns. Inner dimensions are split every 576 values, and the parts' sums are added in order.
//! So an element's bits depend neither on the number of threads nor on the other rows and columns. Products of few rows have separate
//! kernels, which split inner dimensions differently.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod few_rows;
mod kernel;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(target_arch = "x86_64")]
mod tile;

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::lanes_summed;
#[cfg(target_arch = "x86_64")]
pub(super) use blocks::{ProductDestination, products};
#[cfg(target_arch = "x86_64")]
pub(super) use few_rows::FewRows;
pub use kernel::supported;
#[cfg(target_arch = "x86_64")]
pub(super) use kernel::{Bf16Kernel, kernel};
#[cfg(target_arch = "x86_64")]
pub(super) use pack::Operand;
#[cfg(target_arch = "x86_64")]
pub(super) use tile::{PAIRS, place, write_pairs};

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::codes::{QuantizationScheme, QuantizedWeight};
    use crate::slices::SharedPointer;
    use crate::view::OperandValues;
    use crate::weight_storage::{WeightMatrix, WeightValues};
    use candle_core::{DType, Device, Tensor};
    use half::bf16;

    /// Returns all kernels that this processor has.
    fn kernels() -> Vec<Bf16Kernel> {
        let found = kernel();
        if found.is_none() {
            eprintln!("skipped: this processor has no AVX-512 with BF16");
        }
        let slower = found.filter(|kernel| *kernel == Bf16Kernel::Amx).map(|_| Bf16Kernel::Avx512);
        found.into_iter().chain(slower).collect()
    }

    /// Asserts that few rows have the products of rounded values with the stored weight, whose operands have these values.
    fn assert_products(stored: WeightMatrix<'_>, of_w: impl Fn(usize) -> f32, n: usize) {
        let (d_out, d_in) = stored.dims();
        let xs: Vec<f32> = (0..n * d_in).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        for kernel in kernels() {
            // SAFETY: the processor has the kernel.
            let few = unsafe { FewRows::new(kernel, &xs, n, d_in) };
            let mut got = vec![f32::NAN; n * d_out];
            few.products(&WeightValues::open(stored).unwrap(), &[0.0; 128], 0..d_out, |first, row, sums, count| {
                got[row * d_out + first..][..count].copy_from_slice(&sums[..count]);
            });
            for (i, got) in got.into_iter().enumerate() {
                let (row, output) = (i / d_out, i % d_out);
                let product =
                    |k: usize| f64::from(bf16::from_f32(xs[row * d_in + k]).to_f32()) * f64::from(of_w(output * d_in + k));
                let want = (0..d_in).map(product).sum::<f64>();
                let off = (f64::from(got) - want).abs();
                assert!(off < 1e-3, "{kernel:?}, {stored:?}, row {row}, output {output}: {got}, not {want}");
            }
        }
    }

    #[test]
    fn few_rows_have_the_products_of_rounded_values_with_a_weight_as_it_lies() {
        const SIZES: [(usize, usize, usize); 7] =
            [(1, 32, 1), (8, 96, 70), (16, 1024, 33), (37, 64, 64), (9, 1056, 40), (24, 3072, 64), (5, 2112, 96)];
        for (n, d_in, d_out) in SIZES {
            let values: Vec<f32> = (0..d_out * d_in).map(|i| ((i * 111) % 101) as f32 / 50.0 - 1.0).collect();
            let w = Tensor::from_vec(values, (d_out, d_in), &Device::Cpu).unwrap();
            for dtype in [DType::BF16, DType::F16] {
                let half = w.to_dtype(dtype).unwrap();
                let read = crate::to_vec(&half.to_dtype(DType::F32).unwrap()).unwrap();
                assert_products((&half).into(), |i| bf16::from_f32(read[i]).to_f32(), n);
            }
            for scheme in [QuantizationScheme::Int8, QuantizationScheme::Nf4] {
                let (codes, scales) = scheme.quantize(&w).unwrap();
                let few = WeightMatrix::Quantized(QuantizedWeight { codes: &codes, scales: &scales, scheme });
                let read = crate::to_vec(&few.in_f32().unwrap()).unwrap();
                let rounds = |x: f32| if scheme == QuantizationScheme::Nf4 { bf16::from_f32(x).to_f32() } else { x };
                assert_products(few, |i| rounds(read[i]), n);
            }
        }
    }

    #[test]
    fn kernels_agree_and_threads_and_neighbours_change_no_bit() {
        let (m, k, n) = (75, 1203, 90);
        let value = |i: usize| ((i * 37) % 101) as f32 / 50.0 - 1.0;
        let (a, b): (Vec<f32>, Vec<f32>) = ((0..m * k).map(value).collect(), (0..n * k).map(value).collect());
        let operand =
            |values, outer| Operand { values: OperandValues::F32(values), outer, inner: k, outer_stride: k, inner_stride: 1 };
        let product = |kernel, (rows, columns), threads| {
            let mut out = vec![0f32; rows * columns];
            let to = ProductDestination { out: SharedPointer::new(&mut out), stride: columns, add: false, scale: 1.0 };
            // SAFETY: the processor has the kernel, and all sizes fit.
            unsafe { products(kernel, operand(&a, rows), &[(operand(&b, columns), to)], threads) };
            out
        };
        let wanted: Vec<f64> = (0..m * n)
            .map(|i| {
                let (a, b) = (OperandValues::F32(&a[i / n * k..]), OperandValues::F32(&b[i % n * k..]));
                (0..k).map(|k| f64::from(a.rounded(k)) * f64::from(b.rounded(k))).sum()
            })
            .collect();
        for kernel in kernels() {
            let all = product(kernel, (m, n), true);
            let off = all.iter().zip(&wanted).map(|(x, y)| (f64::from(*x) - y).abs()).fold(0.0, f64::max);
            assert!(off < 1e-3, "{kernel:?} is off by {off}");
            assert_eq!(all, product(kernel, (m, n), false), "{kernel:?}, one thread");
            let some = product(kernel, (19, 35), false);
            assert!((0..19 * 35).all(|i| some[i] == all[i / 35 * n + i % 35]), "{kernel:?}, fewer rows and columns");
        }
    }
}
