//! The same sums of blocks by AVX-512's products of pairs of bf16.

use super::pack::{INNER, Line, SIDE};
use super::tile::{Tile, WIDTH};
use half::bf16;
use std::arch::x86_64::*;

/// Rows whose sums are in registers together.
const ROWS: usize = 8;

/// Computes the sums of one or two groups of rows with one or two of columns, each with `steps` blocks along the inner dimension.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn sums(a: &[Line], b: &[Line], steps: usize, tile: &mut Tile) {
    let group = steps * SIDE;
    for (a, rows) in a.chunks_exact(group).zip(tile.rows.chunks_exact_mut(SIDE)) {
        for (first, rows) in (0..SIDE).step_by(ROWS).zip(rows.chunks_exact_mut(ROWS)) {
            if b.len() == group { part::<1>(a, first, b, rows) } else { part::<2>(a, first, b, rows) }
        }
    }
}

/// Computes the sums of eight rows, from the `first` of a group on, with `G` groups of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
fn part<const G: usize>(a: &[Line], first: usize, b: &[Line], out: &mut [[f32; WIDTH]]) {
    let groups: [&[Line]; G] = std::array::from_fn(|g| &b[g * a.len()..][..a.len()]);
    let mut sums = [[_mm512_setzero_ps(); G]; ROWS];
    for step in (0..a.len()).step_by(SIDE) {
        let rows = &a[step + first..][..ROWS];
        for p in 0..SIDE {
            let columns = groups.map(|lines| lines[step + p].register());
            for (sums, row) in sums.iter_mut().zip(rows) {
                let pair = row.spread(p);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = _mm512_dpbf16_ps(*sum, pair, column);
                }
            }
        }
    }
    for (row, sums) in out.iter_mut().zip(sums) {
        for (part, sum) in row.as_chunks_mut::<SIDE>().0.iter_mut().zip(sums) {
            // SAFETY: a part has a register's values.
            unsafe { _mm512_storeu_ps(part.as_mut_ptr(), sum) };
        }
    }
}

/// Computes the products of 32 rows `w`, as they are stored, with those of a group.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn sums_of_rows(w: &[bf16], lines: &[Line], out: &mut [[f32; SIDE]; WIDTH]) {
    for (w, out) in w.chunks_exact(w.len() / WIDTH).zip(out) {
        for (first, out) in (0..SIDE).step_by(ROWS).zip(out.chunks_exact_mut(ROWS)) {
            let mut sums = [_mm512_setzero_ps(); ROWS];
            for (w, block) in w.as_chunks::<INNER>().0.iter().zip(lines.as_chunks::<SIDE>().0) {
                // SAFETY: a block's values fill a register; both types hold any bits.
                let w: __m512bh = unsafe { std::mem::transmute(_mm512_loadu_si512(w.as_ptr().cast())) };
                for (sum, row) in sums.iter_mut().zip(&block[first..]) {
                    *sum = _mm512_dpbf16_ps(*sum, row.register(), w);
                }
            }
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = _mm512_reduce_add_ps(sum));
        }
    }
}
