//! Sums of a kernel call, before they are written to their destination.

use super::pack::{SIDE, transposed};
use std::arch::x86_64::*;

/// Number of rows or columns of two groups.
pub(super) const WIDTH: usize = 2 * SIDE;

/// Number of pairs of outputs whose products with a part of their inputs come before those with the next part.
pub(crate) const PAIRS: usize = WIDTH / 2;

/// Returns the offset of step `at` among the weights of a group of outputs, each with `each` inputs. The steps go through all pairs with
/// the first `part` inputs, then with the next. Beyond the last step, this is the offset of the following outputs.
#[inline(always)]
pub(crate) fn place(at: usize, each: usize, part: usize) -> usize {
    let parts = each.div_ceil(part);
    let (pair, number) = if at < parts * PAIRS { (at % PAIRS, at / PAIRS) } else { (at - (parts - 1) * PAIRS, 0) };
    2 * pair * each + number * part
}

/// Writes the sums of 32 outputs with eight rows, row by row, times the outputs' factors and with their bias. Each register has the sums of
/// an output with all rows, and then those of the next output.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
pub(crate) unsafe fn write_pairs(
    sums: [__m512; SIDE],
    (factors, bias): (&[f32; WIDTH], &[f32; WIDTH]),
    out: &mut [[f32; WIDTH]],
) {
    // SAFETY: both types hold any bits.
    let turned: [__m512; SIDE] =
        unsafe { std::mem::transmute(transposed(std::mem::transmute::<[__m512; SIDE], [__m512i; SIDE]>(sums))) };
    assert!(out.len() >= SIDE / 2, "too few rows");
    let lanes = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    for half in 0..2 {
        let (places, at) = (_mm512_add_epi32(lanes, _mm512_set1_epi32(8 * half)), SIDE * half as usize);
        // SAFETY: factors, bias and rows have 32 values.
        unsafe {
            let (factors, bias) = (_mm512_loadu_ps(factors.as_ptr().add(at)), _mm512_loadu_ps(bias.as_ptr().add(at)));
            for r in 0..SIDE / 2 {
                let both = _mm512_permutex2var_ps(turned[r], places, turned[SIDE / 2 + r]);
                _mm512_storeu_ps(out[r].as_mut_ptr().add(at), _mm512_add_ps(_mm512_mul_ps(both, factors), bias));
            }
        }
    }
}

/// Sums of up to 32 rows with up to 32 columns.
#[repr(C, align(64))]
pub(super) struct Bf16SumTile {
    pub rows: [[f32; WIDTH]; WIDTH],
}

impl Bf16SumTile {
    pub(super) const ZERO: Self = Self { rows: [[0.0; WIDTH]; WIDTH] };

    /// Reads the first rows and columns.
    ///
    /// # Safety
    /// As [`Bf16SumTile::store`].
    pub(super) unsafe fn load(&mut self, from: *const f32, stride: usize, rows: usize, columns: usize) {
        for (i, row) in self.rows.iter_mut().take(rows).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from.add(i * stride), row.as_mut_ptr(), columns) };
        }
    }

    /// Writes or adds the sums of the first rows and columns, times `scale`.
    ///
    /// # Safety
    /// `out` points to `rows` rows of `columns` values, `stride` apart; the processor has AVX-512.
    #[target_feature(enable = "avx512f,avx512vl")]
    pub(super) unsafe fn store(&self, out: *mut f32, stride: usize, rows: usize, columns: usize, scale: f32, add: bool) {
        let factor = _mm512_set1_ps(scale);
        for (i, row) in self.rows.iter().take(rows).enumerate() {
            for (from, part) in (0..columns).step_by(SIDE).zip(row.as_chunks::<SIDE>().0) {
                let mask = ((1u32 << SIDE.min(columns - from)) - 1) as u16;
                // SAFETY: masked values are neither read nor written.
                unsafe {
                    let at = out.add(i * stride + from);
                    let sums = _mm512_loadu_ps(part.as_ptr());
                    let sums = if add {
                        _mm512_fmadd_ps(sums, factor, _mm512_maskz_loadu_ps(mask, at))
                    } else {
                        _mm512_mul_ps(sums, factor)
                    };
                    _mm512_mask_storeu_ps(at, mask, sums);
                }
            }
        }
    }
}
