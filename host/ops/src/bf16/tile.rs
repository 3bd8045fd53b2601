//! The sums of a kernel's call, on their way to where they belong.

use super::pack::SIDE;
use std::arch::x86_64::*;

/// Rows and columns of two groups.
pub(super) const WIDTH: usize = 2 * SIDE;

/// Sums of up to 32 rows with up to 32 columns.
#[repr(C, align(64))]
pub(super) struct Tile {
    pub rows: [[f32; WIDTH]; WIDTH],
}

impl Tile {
    pub(super) const ZERO: Self = Self { rows: [[0.0; WIDTH]; WIDTH] };

    /// Reads the first rows and columns.
    ///
    /// # Safety
    /// As [`Tile::store`].
    pub(super) unsafe fn load(&mut self, from: *const f32, stride: usize, rows: usize, columns: usize) {
        for (i, row) in self.rows.iter_mut().take(rows).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from.add(i * stride), row.as_mut_ptr(), columns) };
        }
    }

    /// Writes or adds the sums of the first rows and columns, times `scale`.
    ///
    /// # Safety
    /// `out` points to as many rows of as many values, `stride` apart; the processor has AVX-512.
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
