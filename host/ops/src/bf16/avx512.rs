//! The same sums of blocks by AVX-512's products of pairs of bf16.
//!
//! Its loops count places: iterators and closures over registers are compiled for any processor and can't be inlined here, so
//! the sums would go through memory, which takes twenty times as long.
#![allow(clippy::needless_range_loop)]

use super::pack::{INNER, Line, SIDE};
use super::tile::{Tile, WIDTH};
use half::bf16;
use std::arch::x86_64::*;

/// Rows whose sums are in registers together.
const ROWS: usize = 8;

/// How far ahead of where a stored row is read, in bytes.
const AHEAD: usize = 2048;

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
    let group = a.len();
    assert!(b.len() == G * group && group.is_multiple_of(SIDE) && first + ROWS <= SIDE && out.len() == ROWS);
    let mut sums = [[_mm512_setzero_ps(); G]; ROWS];
    for step in (0..group).step_by(SIDE) {
        for p in 0..SIDE {
            let mut columns = [Line::ZERO.register(); G];
            for g in 0..G {
                columns[g] = b[g * group + step + p].register();
            }
            for r in 0..ROWS {
                let pair = a[step + first + r].spread(p);
                for g in 0..G {
                    sums[r][g] = _mm512_dpbf16_ps(sums[r][g], pair, columns[g]);
                }
            }
        }
    }
    for r in 0..ROWS {
        for g in 0..G {
            // SAFETY: a row has room for two registers.
            unsafe { _mm512_storeu_ps(out[r].as_mut_ptr().add(g * SIDE), sums[r][g]) };
        }
    }
}

/// Computes the products of 32 rows `w`, as they are stored, with the first `rows` of a group. The other sums may stay as they are.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn sums_of_rows(w: &[bf16], lines: &[Line], rows: usize, out: &mut [[f32; SIDE]; WIDTH]) {
    let each = w.len() / WIDTH;
    for (w, out) in w.chunks_exact(2 * each).zip(out.as_chunks_mut::<2>().0) {
        let w = [w[..each].as_chunks::<INNER>().0, w[each..].as_chunks::<INNER>().0];
        for first in (0..rows).step_by(ROWS) {
            pair(w, lines.as_chunks::<SIDE>().0, first, out);
        }
    }
}

/// Computes the products of two stored rows with eight of a group, from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
fn pair(w: [&[[bf16; INNER]]; 2], blocks: &[[Line; SIDE]], first: usize, out: &mut [[f32; SIDE]; 2]) {
    assert!(w[0].len() == blocks.len() && w[1].len() == blocks.len() && first + ROWS <= SIDE);
    let mut sums = [_mm512_setzero_ps(); 2 * ROWS];
    for step in 0..blocks.len() {
        // Rows are short for the processor, which would begin to read ahead anew with each.
        for w in [&w[0][step], &w[1][step]] {
            _mm_prefetch::<_MM_HINT_T0>(w.as_ptr().cast::<i8>().wrapping_add(AHEAD));
        }
        let stored = [stored(&w[0][step]), stored(&w[1][step])];
        for r in 0..ROWS {
            let row = blocks[step][first + r].register();
            sums[r] = _mm512_dpbf16_ps(sums[r], row, stored[0]);
            sums[ROWS + r] = _mm512_dpbf16_ps(sums[ROWS + r], row, stored[1]);
        }
    }
    let sums = lanes_summed(sums);
    // SAFETY: both halves have room for eight values.
    unsafe {
        _mm256_storeu_ps(out[0].as_mut_ptr().add(first), _mm512_castps512_ps256(sums));
        _mm256_storeu_ps(out[1].as_mut_ptr().add(first), _mm512_extractf32x8_ps::<1>(sums));
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn stored(values: &[bf16; INNER]) -> __m512bh {
    // SAFETY: the values fill a register; both types hold any bits.
    unsafe { std::mem::transmute(_mm512_loadu_si512(values.as_ptr().cast())) }
}

/// Returns the sum of each register's values, in the registers' order.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn lanes_summed(r: [__m512; 2 * ROWS]) -> __m512 {
    let mut s = r;
    // Each step adds halves of two registers and leaves them in one: of 2, 4, 8 and 16 values that are still to be added up.
    for i in 0..8 {
        s[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    }
    for i in 0..4 {
        let (a, b) = (_mm512_castps_pd(s[2 * i]), _mm512_castps_pd(s[2 * i + 1]));
        s[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for i in 0..2 {
        let (a, b) = (s[2 * i], s[2 * i + 1]);
        s[i] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
    }
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(s[0], s[1]), _mm512_shuffle_f32x4::<0xdd>(s[0], s[1]))
}

/// Writes 8-bit codes, a multiple of 32, into the first values of `out`: bf16 holds them exactly.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn widen(codes: &[u8], out: &mut [bf16]) {
    assert!(codes.len().is_multiple_of(INNER) && codes.len() <= out.len(), "incomplete rows");
    for i in (0..codes.len()).step_by(INNER) {
        // SAFETY: both have 32 values from here on; a register of bf16 is 64 bytes without invalid values.
        unsafe {
            let half = |from: usize| _mm_loadu_si128(codes.as_ptr().add(i + from).cast());
            let (low, high) = (_mm512_cvtepi8_epi32(half(0)), _mm512_cvtepi8_epi32(half(SIDE)));
            let values: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low)));
            _mm512_storeu_si512(out.as_mut_ptr().add(i).cast(), values);
        }
    }
}
