//! Rearranges operands into the blocks that kernels read.

use crate::view::{MatrixView, OperandValues};
use std::arch::x86_64::*;

/// Number of rows or columns of a block.
pub(super) const SIDE: usize = 16;

/// Number of inner values of a block.
pub(super) const INNER: usize = 2 * SIDE;

/// A line of 32 values in bf16, or of 16 pairs of neighbours along the inner dimension.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Bf16Line([u32; SIDE]);

/// An operand of a kernel. Its outer dimension is the rows of the first or the columns of the second operand.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub values: OperandValues<'a>,
    pub outer: usize,
    pub inner: usize,
    pub outer_stride: usize,
    pub inner_stride: usize,
}

/// Creates the left operand of a product. For the right operand, convert the transpose.
impl<'a> From<MatrixView<'a>> for Operand<'a> {
    fn from(matrix: MatrixView<'a>) -> Self {
        let MatrixView { data, rows, cols, row_stride, col_stride } = matrix;
        Self { values: data, outer: rows, inner: cols, outer_stride: row_stride, inner_stride: col_stride }
    }
}

/// Content of a block's line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineLayout {
    /// 32 inner values of a row, for the first operand.
    Rows,
    /// A pair of inner values of each of 16 columns, for the second operand.
    Pairs,
}

impl Operand<'_> {
    /// Returns the number of groups of 16 along the outer dimension. Each has blocks along the inner dimension.
    pub(super) fn groups(&self) -> usize {
        self.outer.div_ceil(SIDE)
    }

    /// Writes the blocks of group `group` for the inner values from `first` on, `lines.len()` of them.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16, and the strides keep all elements within the values.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn pack(&self, group: usize, first: usize, order: LineLayout, lines: &mut [Bf16Line]) {
        let at = group * SIDE;
        let outer = SIDE.min(self.outer - at);
        for (step, block) in lines.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            let from = first + step * INNER;
            let inner = INNER.min(self.inner.saturating_sub(from));
            // SAFETY: as promised; the masks leave out what lies beyond the operand.
            let (found, loaded) = unsafe {
                if self.inner_stride == 1 {
                    (LineLayout::Rows, self.rows(at, outer, from, inner))
                } else {
                    (LineLayout::Pairs, self.pairs(at, outer, from, inner))
                }
            };
            let loaded = if found == order { loaded } else { transposed(loaded) };
            for (line, values) in block.iter_mut().zip(loaded) {
                // SAFETY: a line is as large as a register and aligned.
                unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), values) };
            }
        }
    }

    /// Loads rows of contiguous inner values, and prefetches the same part of the next rows: packing a group takes no longer than a read
    /// from memory.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    #[inline]
    unsafe fn rows(&self, at: usize, outer: usize, from: usize, inner: usize) -> [__m512i; SIDE] {
        let mut rows = [_mm512_setzero_si512(); SIDE];
        let mask = (((1u64 << inner) - 1) & 0xffff_ffff) as u32;
        for (i, row) in rows.iter_mut().take(outer).enumerate() {
            let place = (at + i) * self.outer_stride + from;
            // SAFETY: masked values are not read.
            *row = unsafe {
                match self.values {
                    OperandValues::F32(values) => {
                        let place = values.as_ptr().wrapping_add(place);
                        let next = place.wrapping_add(SIDE * self.outer_stride);
                        _mm_prefetch::<_MM_HINT_T0>(next.cast());
                        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(SIDE).cast());
                        let low = _mm512_maskz_loadu_ps(mask as u16, place);
                        let high = _mm512_maskz_loadu_ps((mask >> SIDE) as u16, place.wrapping_add(SIDE));
                        bits(_mm512_cvtne2ps_pbh(high, low))
                    }
                    OperandValues::Bf16(values) => {
                        let place = values.as_ptr().wrapping_add(place);
                        _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(SIDE * self.outer_stride).cast());
                        _mm512_maskz_loadu_epi16(mask, place.cast())
                    }
                }
            };
        }
        rows
    }

    /// Loads pairs of inner values of contiguous columns, and prefetches the next columns, which start another cache line.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    #[inline]
    unsafe fn pairs(&self, at: usize, outer: usize, from: usize, inner: usize) -> [__m512i; SIDE] {
        debug_assert_eq!(self.outer_stride, 1);
        let mut pairs = [_mm512_setzero_si512(); SIDE];
        let mask = ((1u32 << outer) - 1) as u16;
        // Selects the i-th of the lower half, then the i-th of the upper.
        let both = _mm512_or_si512(_mm512_set1_epi32(16 << 16), {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_or_si512(lanes, _mm512_slli_epi32::<16>(lanes))
        });
        for (p, pair) in pairs.iter_mut().take(inner.div_ceil(2)).enumerate() {
            let place = (from + 2 * p) * self.inner_stride + at;
            let second = if 2 * p + 1 < inner { mask } else { 0 };
            // SAFETY: masked values are not read.
            let halves = unsafe {
                match self.values {
                    OperandValues::F32(values) => {
                        let place = values.as_ptr().wrapping_add(place);
                        let next = place.wrapping_add(SIDE);
                        _mm_prefetch::<_MM_HINT_T0>(next.cast());
                        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(self.inner_stride).cast());
                        let low = _mm512_maskz_loadu_ps(mask, place);
                        let high = _mm512_maskz_loadu_ps(second, place.wrapping_add(self.inner_stride));
                        bits(_mm512_cvtne2ps_pbh(high, low))
                    }
                    OperandValues::Bf16(values) => {
                        let place = values.as_ptr().wrapping_add(place);
                        let next = place.wrapping_add(2 * SIDE);
                        _mm_prefetch::<_MM_HINT_T0>(next.cast());
                        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(self.inner_stride).cast());
                        let low = _mm256_maskz_loadu_epi16(mask, place.cast());
                        let high = _mm256_maskz_loadu_epi16(second, place.wrapping_add(self.inner_stride).cast());
                        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
                    }
                }
            };
            *pair = _mm512_permutexvar_epi16(both, halves);
        }
        pairs
    }
}

/// Returns a register of bf16 as integers.
#[inline(always)]
fn bits(values: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute(values) }
}

/// Transposes sixteen rows of sixteen pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
pub(super) fn transposed(r: [__m512i; SIDE]) -> [__m512i; SIDE] {
    let mut t = r;
    for i in (0..SIDE).step_by(2) {
        (t[i], t[i + 1]) = (_mm512_unpacklo_epi32(r[i], r[i + 1]), _mm512_unpackhi_epi32(r[i], r[i + 1]));
    }
    let mut u = t;
    for i in (0..SIDE).step_by(4) {
        (u[i], u[i + 1]) = (_mm512_unpacklo_epi64(t[i], t[i + 2]), _mm512_unpackhi_epi64(t[i], t[i + 2]));
        (u[i + 2], u[i + 3]) = (_mm512_unpacklo_epi64(t[i + 1], t[i + 3]), _mm512_unpackhi_epi64(t[i + 1], t[i + 3]));
    }
    // Now u[4 b + j] has column 4 l + j of the rows 4 b .. 4 b + 4 in its quarter l.
    let mut out = r;
    for j in 0..4 {
        let (a, b, c, d) = (u[j], u[4 + j], u[8 + j], u[12 + j]);
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        out[j] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
        out[8 + j] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
        out[4 + j] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
        out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
    }
    out
}

impl Bf16Line {
    pub(super) const ZERO: Self = Self([0; SIDE]);

    /// Returns all pairs.
    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    pub(super) fn register(&self) -> __m512bh {
        // SAFETY: a line is as large as a register and aligned; both types hold any bits.
        unsafe { std::mem::transmute(_mm512_load_si512(self.0.as_ptr().cast())) }
    }

    /// Returns a register with one pair repeated.
    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    pub(super) fn spread(&self, i: usize) -> __m512bh {
        // SAFETY: both types hold any bits.
        unsafe { std::mem::transmute(_mm512_set1_epi32(self.0[i].cast_signed())) }
    }

    /// Returns the pair at an index.
    #[cfg(test)]
    pub(super) fn pair(&self, i: usize) -> [f32; 2] {
        [self.0[i] << 16, self.0[i] & 0xffff_0000].map(f32::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bf16::kernel;
    use half::bf16;

    #[test]
    fn blocks_hold_every_value_once_rounded_whatever_the_layout() {
        if kernel().is_none() {
            eprintln!("skipped: this processor has no AVX-512 with BF16");
            return;
        }
        let value = |o: usize, i: usize| bf16::from_f32((o * 64 + i) as f32 / 7.0 - 30.0).to_f32();
        for (outer, inner) in [(16, 32), (1, 1), (5, 33), (17, 31), (40, 64), (16, 2)] {
            for contiguous in [true, false] {
                let strides = if contiguous { (inner + 3, 1) } else { (1, outer + 5) };
                let mut wide = vec![f32::NAN; outer * strides.0 + inner * strides.1];
                for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                    // Close to a bf16 value, so that rounding is needed.
                    wide[o * strides.0 + i * strides.1] = value(o, i) * (1.0 + 1e-5);
                }
                let half: Vec<bf16> = wide.iter().map(|x| bf16::from_f32(*x)).collect();
                for values in [OperandValues::F32(&wide), OperandValues::Bf16(&half)] {
                    let operand = Operand { values, outer, inner, outer_stride: strides.0, inner_stride: strides.1 };
                    for (order, group) in
                        [LineLayout::Rows, LineLayout::Pairs].into_iter().flat_map(|o| (0..operand.groups()).map(move |g| (o, g)))
                    {
                        let steps = inner.div_ceil(INNER);
                        let mut lines = vec![Bf16Line::ZERO; steps * SIDE];
                        // SAFETY: the processor has the features, and the values are large enough.
                        unsafe { operand.pack(group, 0, order, &mut lines) };
                        for (s, o, i) in (0..steps).flat_map(|s| (0..SIDE).flat_map(move |o| (0..INNER).map(move |i| (s, o, i))))
                        {
                            let (line, pair) = if order == LineLayout::Rows { (o, i / 2) } else { (i / 2, o) };
                            let got = lines[s * SIDE + line].pair(pair)[i % 2];
                            let (o, i) = (group * SIDE + o, s * INNER + i);
                            let want = if o < outer && i < inner { value(o, i) } else { 0.0 };
                            assert_eq!(got, want, "{outer} by {inner}, {o} {i}");
                        }
                    }
                }
            }
        }
    }
}
