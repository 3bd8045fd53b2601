//! Rearranges stored weights for products with few rows. Some inputs of [`WIDTH`] outputs, stored as `[WIDTH, inputs]`, become `[inputs,
//! WIDTH]` in f32, in the L1 cache.

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::weight_storage::WeightValues;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Number of outputs whose weights are stored together: two AVX-512 registers.
pub(super) const WIDTH: usize = 32;

/// Maximum number of inputs that are rearranged together.
pub(super) const INPUTS: usize = 128;

/// Number of outputs that are rearranged together, as many as fit into an AVX2 register.
const SIDE: usize = 8;

/// Scratch memory for rearranged weights.
pub(super) struct UnpackScratch {
    lines: Box<[[f32; WIDTH]; INPUTS]>,
    /// Weights of some outputs, output by output.
    rows: Box<[f32; SIDE * INPUTS]>,
}

impl UnpackScratch {
    pub(super) fn new() -> Self {
        Self { lines: Box::new([[0.0; WIDTH]; INPUTS]), rows: Box::new([0.0; SIDE * INPUTS]) }
    }

    /// Returns the weights of these inputs, one line each with [`WIDTH`] of `outputs`. If there are fewer outputs, the remaining positions
    /// have arbitrary values.
    pub(super) fn lines(&mut self, w: &WeightValues<'_>, d_in: usize, outputs: &Range<usize>, inputs: &Range<usize>) -> &[f32] {
        let lines = &mut self.lines[..inputs.len()];
        for first in (0..WIDTH.min(outputs.len())).step_by(SIDE) {
            let output = |i: usize| (outputs.start + first + i).min(outputs.end - 1);
            #[cfg(target_arch = "x86_64")]
            if let (WeightValues::Bf16(values), true) = (w, simd::wide_registers()) {
                let rows: [&[half::bf16]; SIDE] =
                    std::array::from_fn(|i| &values[output(i) * d_in + inputs.start..][..inputs.len()]);
                // SAFETY: the processor has AVX2.
                unsafe { avx2::lines_of_bf16(rows, lines, first) };
                continue;
            }
            for (i, row) in self.rows.chunks_exact_mut(INPUTS).enumerate() {
                w.widen(output(i) * d_in + inputs.start, unset(&mut row[..inputs.len()]));
            }
            turn(&self.rows, lines, first);
        }
        lines.as_flattened()
    }
}

/// Returns the slice as values to be written.
fn unset(values: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: both have the same layout, and what [`WeightValues::widen`] writes are values.
    unsafe { &mut *(std::ptr::from_mut(values) as *mut [MaybeUninit<f32>]) }
}

/// Writes rows of [`INPUTS`] values into columns of `lines`, from `first` on.
fn turn(rows: &[f32; SIDE * INPUTS], lines: &mut [[f32; WIDTH]], first: usize) {
    #[cfg(target_arch = "x86_64")]
    if simd::wide_registers() {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::turn(rows, lines, first) };
    }
    for (k, line) in lines.iter_mut().enumerate() {
        for i in 0..SIDE {
            line[first + i] = rows[i * INPUTS + k];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Loops use indices, since closures over registers can't be inlined into functions with target features.
    #![allow(clippy::needless_range_loop)]

    use super::{INPUTS, SIDE, WIDTH};
    use half::bf16;
    use std::arch::x86_64::*;

    /// Transposes eight rows of eight values.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn transposed(r: [__m256; SIDE]) -> [__m256; SIDE] {
        let mut a = r;
        for i in 0..SIDE / 2 {
            a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut b = a;
        for half in [0, 4] {
            for i in 0..2 {
                b[half + 2 * i] = _mm256_shuffle_ps::<0x44>(a[half + i], a[half + 2 + i]);
                b[half + 2 * i + 1] = _mm256_shuffle_ps::<0xee>(a[half + i], a[half + 2 + i]);
            }
        }
        let mut c = b;
        for i in 0..SIDE / 2 {
            c[i] = _mm256_permute2f128_ps::<0x20>(b[i], b[i + 4]);
            c[i + 4] = _mm256_permute2f128_ps::<0x31>(b[i], b[i + 4]);
        }
        c
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn turn(rows: &[f32; SIDE * INPUTS], lines: &mut [[f32; WIDTH]], first: usize) {
        assert!(lines.len() <= INPUTS && first + SIDE <= WIDTH);
        for (i, lines) in lines.chunks_mut(SIDE).enumerate() {
            // SAFETY: the rows have whole registers of values, and each line has a register's room at `first`.
            unsafe {
                let mut loaded = [_mm256_setzero_ps(); SIDE];
                for r in 0..SIDE {
                    loaded[r] = _mm256_loadu_ps(rows.as_ptr().add(r * INPUTS + i * SIDE));
                }
                let columns = transposed(loaded);
                for k in 0..lines.len() {
                    _mm256_storeu_ps(lines[k].as_mut_ptr().add(first), columns[k]);
                }
            }
        }
    }

    /// Writes rows of bf16 into columns of `lines`. Two neighbours are moved as one 32-bit number and widened last, since bf16 is the upper
    /// half of an f32.
    #[target_feature(enable = "avx2")]
    pub(super) fn lines_of_bf16(rows: [&[bf16]; SIDE], lines: &mut [[f32; WIDTH]], first: usize) {
        let count = lines.len();
        assert!(first + SIDE <= WIDTH && rows.iter().all(|row| row.len() == count));
        let upper = _mm256_set1_epi32(0xffff_0000u32.cast_signed());
        let whole = count / (2 * SIDE) * (2 * SIDE);
        for k in (0..whole).step_by(2 * SIDE) {
            // SAFETY: each row has 16 values at `k`, and each line a register's room at `first`.
            unsafe {
                let mut loaded = [_mm256_setzero_ps(); SIDE];
                for r in 0..SIDE {
                    loaded[r] = _mm256_castsi256_ps(_mm256_loadu_si256(rows[r].as_ptr().add(k).cast()));
                }
                let columns = transposed(loaded);
                for c in 0..SIDE {
                    let both = _mm256_castps_si256(columns[c]);
                    let (even, odd) = (_mm256_slli_epi32::<16>(both), _mm256_and_si256(both, upper));
                    _mm256_storeu_ps(lines[k + 2 * c].as_mut_ptr().add(first), _mm256_castsi256_ps(even));
                    _mm256_storeu_ps(lines[k + 2 * c + 1].as_mut_ptr().add(first), _mm256_castsi256_ps(odd));
                }
            }
        }
        for (k, line) in lines.iter_mut().enumerate().skip(whole) {
            for (to, row) in line[first..first + SIDE].iter_mut().zip(rows) {
                *to = f32::from_bits(u32::from(row[k].to_bits()) << 16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightMatrix;
    use crate::testing::random;
    use candle_core::DType;

    #[test]
    fn weights_are_turned_and_widened_whatever_their_precision_and_place() {
        let (d_out, d_in) = (45, 150);
        let w = random(&[d_out, d_in]);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let w = w.to_dtype(dtype).unwrap();
            let (values, stored) = (crate::to_vec(&w).unwrap(), WeightValues::open(WeightMatrix::Plain(&w)).unwrap());
            assert_eq!(values, w.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
            let mut room = UnpackScratch::new();
            for (outputs, inputs) in [(0..32, 0..128), (32..45, 128..150), (32..45, 3..20), (7..8, 149..150)] {
                let lines = room.lines(&stored, d_in, &outputs, &inputs);
                assert_eq!(lines.len(), inputs.len() * WIDTH);
                for (k, line) in inputs.clone().zip(lines.chunks(WIDTH)) {
                    for (o, got) in outputs.clone().zip(line) {
                        assert_eq!(*got, values[o * d_in + k], "{dtype:?}, output {o}, input {k}");
                    }
                }
            }
        }
    }
}
