//! Sums of blocks with AVX-512's products of pairs of bf16.
//!
//! Loops use indices: iterators and closures over registers are compiled for any processor and can't be inlined here, so the sums would go
//! through memory, which takes twenty times as long.
#![allow(clippy::needless_range_loop)]

use super::amx::SumDestination;
use super::pack::{Bf16Line, INNER, SIDE};
use super::tile::{PAIRS, WIDTH, place};
use crate::codes::{BLOCK, NF4};
use half::bf16;
use std::arch::x86_64::*;

/// Number of rows whose sums are in registers together.
pub(super) const ROWS: usize = 8;

/// Number of inner values of stored rows that are multiplied before the next part: those of [`ROWS`] rows take half of the L1 cache.
const PART: usize = 1024;

/// Number of pairs of stored bf16 rows to prefetch ahead; for codes, the same number of bytes. Prefetches go to the L2 cache, as they don't
/// fit into the L1 cache.
const AHEAD: usize = 3;

/// Computes the sums of one or two groups of rows with one or two of columns, each with `steps` blocks along the inner dimension, and
/// writes or adds them times `scale`.
///
/// # Safety
/// The processor has AVX-512 with BF16; `out` points to as many rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn sums(a: &[Bf16Line], b: &[Bf16Line], steps: usize, out: SumDestination, scale: f32) {
    let group = steps * SIDE;
    for (i, a) in a.chunks_exact(group).enumerate() {
        for first in (0..SIDE).step_by(ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                let at = out.at.add((i * SIDE + first) * out.stride);
                let out = SumDestination { at, ..out };
                if b.len() == group { part::<1>(a, first, b, out, scale) } else { part::<2>(a, first, b, out, scale) }
            }
        }
    }
}

/// Computes the sums of eight rows, from `first` of a group on, with `G` groups of columns, and writes or adds them times `scale`.
///
/// # Safety
/// `out` points to as many rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
unsafe fn part<const G: usize>(a: &[Bf16Line], first: usize, b: &[Bf16Line], out: SumDestination, scale: f32) {
    let group = a.len();
    assert!(b.len() == G * group && group.is_multiple_of(SIDE) && first + ROWS <= SIDE);
    let mut sums = [[_mm512_setzero_ps(); G]; ROWS];
    for step in (0..group).step_by(SIDE) {
        for p in 0..SIDE {
            let mut columns = [Bf16Line::ZERO.register(); G];
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

/// Some rows of a weight in their stored form: values in bf16, or codes of 8 or 4 bits.
#[derive(Clone, Copy)]
pub(super) struct WeightRows<'a> {
    pub bytes: &'a [u8],
    /// Scale of each block of 4-bit codes. The caller scales the sums of 8-bit codes.
    pub scales: &'a [f32],
}

impl<'a> WeightRows<'a> {
    pub(super) fn from_bf16(values: &'a [bf16]) -> Self {
        // SAFETY: bytes have no alignment and no invalid values.
        Self { bytes: unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }, scales: &[] }
    }

    /// Returns the length, in values, of each of `rows` rows of values of `BITS` bits.
    fn each<const BITS: usize>(self, rows: usize) -> usize {
        let each = self.bytes.len() * 8 / BITS / rows;
        assert!(self.bytes.len() == rows * each * BITS / 8 && each.is_multiple_of(INNER), "incomplete rows");
        assert!(BITS != 4 || (each.is_multiple_of(BLOCK) && self.scales.len() == rows * each / BLOCK), "incomplete blocks");
        each
    }

    /// Returns the address of a value of `BITS` bits, which may be beyond the rows.
    fn at<const BITS: usize>(self, value: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(value * BITS / 8)
    }
}

/// Computes the products of 32 rows of values of `BITS` bits with [`ROWS`] others, with one line per block. Each register has the products
/// of a row with all others, and then those of the next row.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn sums_of_rows<const BITS: usize>(w: WeightRows<'_>, lines: &[Bf16Line]) -> [__m512; PAIRS] {
    let each = w.each::<BITS>(WIDTH);
    let parts = each.div_ceil(PART);
    let blocks = lines.as_chunks::<ROWS>().0;
    let place = |at| place(at, each, PART);
    let mut out = [_mm512_setzero_ps(); PAIRS];
    for at in 0..parts * PAIRS {
        let (first, inner) = (place(at), at / PAIRS * PART..each.min((at / PAIRS + 1) * PART));
        let ahead = place(at + AHEAD * 16 / BITS);
        let blocks = &blocks[inner.start / INNER..inner.end / INNER];
        // SAFETY: both rows of the pair have as many blocks from these places on.
        let sums = unsafe { pair::<BITS>(w, [first, first + each], blocks, [ahead, ahead + each]) };
        out[at % PAIRS] = if inner.start > 0 { _mm512_add_ps(out[at % PAIRS], sums) } else { sums };
    }
    out
}

/// Computes the products of two stored rows, from these values on, with eight others.
///
/// # Safety
/// The rows have as many blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
unsafe fn pair<const BITS: usize>(
    w: WeightRows<'_>,
    first: [usize; 2],
    blocks: &[[Bf16Line; ROWS]],
    ahead: [usize; 2],
) -> __m512 {
    let mut sums = [_mm512_setzero_ps(); 2 * ROWS];
    let mut tables = [_mm512_setzero_si512(); 2];
    for step in 0..blocks.len() {
        let inner = step * INNER;
        // Rows are too short for the processor's prefetcher, which would start again with each. A cache line has 512 bits.
        if (inner * BITS).is_multiple_of(512) {
            _mm_prefetch::<_MM_HINT_T1>(w.at::<BITS>(ahead[0] + inner).cast());
            _mm_prefetch::<_MM_HINT_T1>(w.at::<BITS>(ahead[1] + inner).cast());
        }
        if BITS == 4 && inner.is_multiple_of(BLOCK) {
            tables = [table(w.scales[(first[0] + inner) / BLOCK]), table(w.scales[(first[1] + inner) / BLOCK])];
        }
        // SAFETY: the caller's promise.
        let stored = unsafe {
            [
                in_bf16::<BITS>(w.at::<BITS>(first[0] + inner), tables[0]),
                in_bf16::<BITS>(w.at::<BITS>(first[1] + inner), tables[1]),
            ]
        };
        for r in 0..ROWS {
            let row = blocks[step][r].register();
            sums[r] = _mm512_dpbf16_ps(sums[r], row, stored[0]);
            sums[ROWS + r] = _mm512_dpbf16_ps(sums[ROWS + r], row, stored[1]);
        }
    }
    lanes_summed(sums)
}

/// Loads 32 values of `BITS` bits as bf16. Values of 4 bits are looked up in a [`table`].
///
/// # Safety
/// As many lie at this address.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
unsafe fn in_bf16<const BITS: usize>(at: *const u8, table: __m512i) -> __m512bh {
    const { assert!(BITS == 16 || BITS == 8 || BITS == 4) };
    // SAFETY: the caller's promise; a register of bf16 is 64 bytes without invalid values.
    unsafe {
        match BITS {
            16 => std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())),
            8 => {
                let low = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
                let high = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.add(SIDE).cast()));
                _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low))
            }
            _ => {
                // The first of a byte's two codes is in its upper half. The lookup uses five bits of an index.
                let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
                let places = _mm512_srli_epi32::<4>(_mm512_or_si512(codes, _mm512_slli_epi32::<20>(codes)));
                std::mem::transmute::<__m512i, __m512bh>(_mm512_permutexvar_epi16(places, table))
            }
        }
    }
}

/// Returns the rounded values of a block's 4-bit codes, twice, since an index's fifth bit belongs to another code.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
fn table(scale: f32) -> __m512i {
    // SAFETY: the values fill a register; a register of bf16 is 32 bytes without invalid values.
    let values: __m256i =
        unsafe { std::mem::transmute(_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(NF4.as_ptr()), _mm512_set1_ps(scale)))) };
    _mm512_broadcast_i64x4(values)
}

/// Writes values of `BITS` bits, in complete rows, as bf16 to the beginning of `out`. Codes of 8 bits are not scaled.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn widen<const BITS: usize>(w: WeightRows<'_>, out: &mut [bf16]) {
    let count = w.each::<BITS>(1);
    assert!(count <= out.len(), "too little room");
    let mut of_block = _mm512_setzero_si512();
    for i in (0..count).step_by(INNER) {
        if BITS == 4 && i.is_multiple_of(BLOCK) {
            of_block = table(w.scales[i / BLOCK]);
        }
        // SAFETY: both have 32 values from here on; a register of bf16 is 64 bytes without invalid values.
        unsafe {
            let values: __m512i = std::mem::transmute(in_bf16::<BITS>(w.at::<BITS>(i), of_block));
            _mm512_storeu_si512(out.as_mut_ptr().add(i).cast(), values);
        }
    }
}

/// Returns the sum of each register's values, in the registers' order.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
pub(crate) fn lanes_summed(r: [__m512; 2 * ROWS]) -> __m512 {
    let mut s = r;
    // Each step adds halves of two registers and leaves them in one, with 2, 4, 8 and 16 values still to be summed.
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
