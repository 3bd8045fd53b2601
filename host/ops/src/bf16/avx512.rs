//! The same sums of blocks by AVX-512's products of pairs of bf16.
//!
//! Its loops count places: iterators and closures over registers are compiled for any processor and can't be inlined here, so
//! the sums would go through memory, which takes twenty times as long.
#![allow(clippy::needless_range_loop)]

use super::amx::Out;
use super::pack::{INNER, Line, SIDE};
use super::tile::WIDTH;
use half::bf16;
use std::arch::x86_64::*;

/// Rows whose sums are in registers together.
pub(super) const ROWS: usize = 8;

/// Inner values of stored rows that are multiplied before the next part: as many of [`ROWS`] rows take half of the L1 cache.
const PART: usize = 1024;

/// How many pairs of stored rows ahead memory is asked for. Into the L2 cache, as the L1 cache has no room for it.
const AHEAD: usize = 3;

/// Computes the sums of one or two groups of rows with one or two of columns, each with `steps` blocks along the inner dimension, and
/// writes or adds them times `scale`.
///
/// # Safety
/// The processor has AVX-512 with BF16; `out` points to as many rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn sums(a: &[Line], b: &[Line], steps: usize, out: Out, scale: f32) {
    let group = steps * SIDE;
    for (i, a) in a.chunks_exact(group).enumerate() {
        for first in (0..SIDE).step_by(ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                let at = out.at.add((i * SIDE + first) * out.stride);
                let out = Out { at, ..out };
                if b.len() == group { part::<1>(a, first, b, out, scale) } else { part::<2>(a, first, b, out, scale) }
            }
        }
    }
}

/// Computes the sums of eight rows, from the `first` of a group on, with `G` groups of columns, and writes or adds them times `scale`.
///
/// # Safety
/// `out` points to as many rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
unsafe fn part<const G: usize>(a: &[Line], first: usize, b: &[Line], out: Out, scale: f32) {
    let group = a.len();
    assert!(b.len() == G * group && group.is_multiple_of(SIDE) && first + ROWS <= SIDE);
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
    let factor = _mm512_set1_ps(scale);
    for r in 0..ROWS {
        for g in 0..G {
            // SAFETY: the caller's promise.
            unsafe {
                let at = out.at.add(r * out.stride + g * SIDE);
                let sums = if out.add {
                    _mm512_fmadd_ps(sums[r][g], factor, _mm512_loadu_ps(at))
                } else {
                    _mm512_mul_ps(sums[r][g], factor)
                };
                _mm512_storeu_ps(at, sums);
            }
        }
    }
}

/// Computes the products of 32 rows `w`, as they are stored, with [`ROWS`] others, of which each block has one line.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn sums_of_rows(w: &[bf16], lines: &[Line], out: &mut [[f32; SIDE]; WIDTH]) {
    const PAIRS: usize = WIDTH / 2;
    let each = w.len() / WIDTH;
    let parts = each.div_ceil(PART);
    let blocks = lines.as_chunks::<ROWS>().0;
    // Where a part of a pair of rows begins; beyond the last part, that of the rows after these.
    let place = |at: usize| {
        let (pair, part) = if at < parts * PAIRS { (at % PAIRS, at / PAIRS) } else { (at - (parts - 1) * PAIRS, 0) };
        2 * pair * each + part * PART
    };
    for at in 0..parts * PAIRS {
        let (first, inner) = (place(at), at / PAIRS * PART..each.min((at / PAIRS + 1) * PART));
        let row = |first: usize| w[first..first + inner.len()].as_chunks::<INNER>().0;
        let ahead = w.as_ptr().wrapping_add(place(at + AHEAD));
        let sums = pair(
            [row(first), row(first + each)],
            &blocks[inner.start / INNER..inner.end / INNER],
            [ahead, ahead.wrapping_add(each)],
        );
        let out = &mut out[2 * (at % PAIRS)..2 * (at % PAIRS) + 2];
        // SAFETY: both halves have room for eight values.
        unsafe {
            let (low, high) = (out[0].as_mut_ptr(), out[1].as_mut_ptr());
            let (mut first, mut second) = (_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums));
            if inner.start > 0 {
                (first, second) = (_mm256_add_ps(_mm256_loadu_ps(low), first), _mm256_add_ps(_mm256_loadu_ps(high), second));
            }
            _mm256_storeu_ps(low, first);
            _mm256_storeu_ps(high, second);
        }
    }
}

/// Computes the products of two stored rows with eight others.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
fn pair(w: [&[[bf16; INNER]]; 2], blocks: &[[Line; ROWS]], ahead: [*const bf16; 2]) -> __m512 {
    assert!(w[0].len() == blocks.len() && w[1].len() == blocks.len());
    let mut sums = [_mm512_setzero_ps(); 2 * ROWS];
    for step in 0..blocks.len() {
        // Rows are short for the processor, which would begin to read ahead anew with each.
        _mm_prefetch::<_MM_HINT_T1>(ahead[0].wrapping_add(step * INNER).cast());
        _mm_prefetch::<_MM_HINT_T1>(ahead[1].wrapping_add(step * INNER).cast());
        let stored = [stored(&w[0][step]), stored(&w[1][step])];
        for r in 0..ROWS {
            let row = blocks[step][r].register();
            sums[r] = _mm512_dpbf16_ps(sums[r], row, stored[0]);
            sums[ROWS + r] = _mm512_dpbf16_ps(sums[ROWS + r], row, stored[1]);
        }
    }
    lanes_summed(sums)
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
