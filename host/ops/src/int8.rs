//! Products of few rows with weights in 8-bit codes, computed in integers. The rows are rounded to 8 bits too, which takes two thirds of
//! the instructions of products in bf16.
//!
//! In a row, 128 inputs share a scale, their largest magnitude (llama.cpp has 32 in `Q8_0` and 256 in `Q8_K`), so a large value reduces
//! only the precision of the others in its block. The products of a block are summed exactly, and the blocks' sums in f32.

use super::codes::{CODE_STEP, codes_of_8_bits, largest};
#[cfg(target_arch = "x86_64")]
use super::processor::{CpuFeatures, features};
use std::ops::Range;

/// Number of inputs of a row that share a scale.
const BLOCK: usize = 128;

/// Number of inputs in a register of codes.
const STEP: usize = 64;

/// Number of rows that are multiplied together.
const ROWS: usize = 8;

/// Number of outputs that are multiplied together.
#[cfg(target_arch = "x86_64")]
const WIDTH: usize = 32;

/// A line of 64 codes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Int8Line([u8; STEP]);

/// Scales and offsets of a block of some rows.
#[derive(Clone, Copy)]
struct Int8BlockScales {
    /// Factors of the sums.
    scales: [f32; ROWS],
    /// Excess of the sums, since weights are offset by 128.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has a kernel"))]
    offsets: [i32; ROWS],
}

/// A weight `[out, in]` in 8-bit codes, with a bias.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Int8Weight<'a> {
    pub codes: &'a [u8],
    /// Scale of each output.
    pub scales: &'a [f32],
    /// Bias, padded to complete groups of outputs.
    pub bias: &'a [f32],
}

/// Rows `[N, in]` in 8 bits, in groups of eight. The last group is padded with zeros.
pub(super) struct Int8Rows {
    /// Codes: the lines of each row, by group and block.
    lines: Vec<Int8Line>,
    /// Scales and sums of each group.
    blocks: Vec<Int8BlockScales>,
    n: usize,
    d_in: usize,
}

/// Returns whether the processor supports these products.
pub(super) fn supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    return features() >= CpuFeatures::Avx512Vnni;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl Int8Rows {
    /// Rounds rows `[N, in]`.
    pub(super) fn new(xs: &[f32], n: usize, d_in: usize) -> Self {
        assert!(xs.len() == n * d_in && d_in > 0, "incomplete rows");
        let (groups, in_group) = (n.div_ceil(ROWS), d_in.div_ceil(BLOCK));
        let mut lines = vec![Int8Line([0; STEP]); groups * ROWS * d_in.div_ceil(STEP)];
        let mut blocks = vec![Int8BlockScales { scales: [0.0; ROWS], offsets: [0; ROWS] }; groups * in_group];
        for (row, xs) in xs.chunks_exact(d_in).enumerate() {
            let (group, r) = (row / ROWS, row % ROWS);
            for (b, values) in xs.chunks(BLOCK).enumerate() {
                let (most, sum) = round(values, &mut lines[places(d_in, group, b, r)]);
                let block = &mut blocks[group * in_group + b];
                (block.scales[r], block.offsets[r]) = (most * CODE_STEP, -128 * sum);
            }
        }
        Self { lines, blocks, n, d_in }
    }

    /// Returns the rounded values, `[N, in]`.
    pub(super) fn values(&self) -> Vec<f32> {
        let in_group = self.d_in.div_ceil(BLOCK);
        let of_block = |row: usize, b: usize| {
            let (group, r) = (row / ROWS, row % ROWS);
            let scale = self.blocks[group * in_group + b].scales[r];
            let codes = self.lines[places(self.d_in, group, b, r)].iter().flat_map(|line| line.0);
            codes.take(BLOCK.min(self.d_in - b * BLOCK)).map(move |code| f32::from(code.cast_signed()) * scale)
        };
        (0..self.n).flat_map(|row| (0..in_group).flat_map(move |b| of_block(row, b))).collect()
    }

    /// Calls `each` for all rows and these `outputs` of a weight, with the first of some outputs, the row's number, their products with the
    /// bias added, and the number of valid products.
    ///
    /// # Panics
    /// If the processor does not support these products ([`supported`]).
    #[cfg(target_arch = "x86_64")]
    pub(super) fn products(
        &self,
        Int8Weight { codes, scales, bias }: Int8Weight<'_>,
        outputs: Range<usize>,
        mut each: impl FnMut(usize, usize, &[f32; WIDTH], usize),
    ) {
        assert!(supported(), "a processor without products of integers");
        let mut tile = [[0.0; WIDTH]; ROWS];
        let mut room = Vec::new();
        for first in outputs.clone().step_by(WIDTH) {
            let count = WIDTH.min(outputs.end - first);
            let mut factors = [0.0; WIDTH];
            factors.iter_mut().zip(&scales[first..first + count]).for_each(|(factor, most)| *factor = most * CODE_STEP);
            let mut own = &codes[first * self.d_in..(first + count) * self.d_in];
            if count < WIDTH {
                room.clear();
                room.extend_from_slice(own);
                room.resize(WIDTH * self.d_in, 0);
                own = &room;
            }
            let bias = &bias.as_chunks::<WIDTH>().0[first / WIDTH];
            let in_group = self.d_in.div_ceil(BLOCK);
            let groups = self.lines.chunks_exact(ROWS * self.d_in.div_ceil(STEP)).zip(self.blocks.chunks_exact(in_group));
            for (group, (lines, blocks)) in groups.enumerate() {
                // SAFETY: the processor has the instructions.
                unsafe { avx512::products(own, lines, blocks, (&factors, bias), &mut tile) };
                for (r, products) in tile.iter().take(self.n - group * ROWS).enumerate() {
                    each(first, group * ROWS + r, products, count);
                }
            }
        }
    }
}

/// Returns the indices of the lines of a row's block.
fn places(d_in: usize, group: usize, block: usize, row: usize) -> Range<usize> {
    let steps = BLOCK.min(d_in - block * BLOCK).div_ceil(STEP);
    let first = (group * d_in.div_ceil(STEP) + block * BLOCK / STEP) * ROWS + row * steps;
    first..first + steps
}

/// Rounds the values of a block. Returns their largest magnitude and the sum of their codes. Incomplete lines are padded with zeros.
fn round(values: &[f32], codes: &mut [Int8Line]) -> (f32, i32) {
    let mut room = [0.0; BLOCK];
    let values = if values.len() < codes.len() * STEP {
        room[..values.len()].copy_from_slice(values);
        &room[..codes.len() * STEP]
    } else {
        values
    };
    #[cfg(target_arch = "x86_64")]
    if supported() {
        // SAFETY: the processor has the instructions.
        return unsafe { avx512::round(values, codes) };
    }
    let (most, mut sum) = (largest(values), 0);
    for (line, values) in codes.iter_mut().zip(values.chunks_exact(STEP)) {
        codes_of_8_bits(values, most, &mut line.0);
        sum += line.0.iter().map(|code| i32::from(code.cast_signed())).sum::<i32>();
    }
    (most, sum)
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    //! Loops use indices, since closures over registers can't be inlined into functions with target features.
    #![allow(clippy::needless_range_loop)]

    use super::{BLOCK, Int8BlockScales, Int8Line, ROWS, STEP, WIDTH};
    use crate::bf16::{PAIRS, lanes_summed, place, write_pairs};
    use crate::codes::LARGEST_CODE;
    use std::arch::x86_64::*;

    /// Number of registers of a complete block.
    const STEPS: usize = BLOCK / STEP;

    /// Number of inputs that are multiplied before the next part: those of [`ROWS`] rows take half of the L1 cache.
    const PART: usize = 24 * BLOCK;

    /// Number of codes to prefetch ahead: some pairs of outputs, into the L2 cache.
    const AHEAD: usize = 24 << 10;

    /// Rounds values to codes in vector registers; see [`super::round`].
    ///
    /// # Safety
    /// The processor has AVX-512 with VNNI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn round(values: &[f32], codes: &mut [Int8Line]) -> (f32, i32) {
        assert!(values.len() == codes.len() * STEP);
        let lanes = values.as_chunks::<16>().0;
        // Magnitudes are ordered like their bits, including those that are not finite.
        let mut most = _mm512_setzero_si512();
        for i in 0..lanes.len() {
            // SAFETY: sixteen values fill a register.
            let x = unsafe { _mm512_loadu_si512(lanes[i].as_ptr().cast()) };
            most = _mm512_max_epu32(most, _mm512_and_si512(x, _mm512_set1_epi32(0x7fff_ffff)));
        }
        let most = f32::from_bits(_mm512_reduce_max_epu32(most));
        let factor = _mm512_set1_ps(if most > 0.0 { (LARGEST_CODE / most).min(f32::MAX) } else { 0.0 });
        let mut sum = _mm512_setzero_si512();
        for i in 0..codes.len() {
            for q in 0..4 {
                // SAFETY: sixteen values fill a register, and their codes a quarter of a line.
                unsafe {
                    let x = _mm512_loadu_ps(lanes[4 * i + q].as_ptr());
                    let rounded = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor)));
                    _mm_storeu_si128(codes[i].0.as_mut_ptr().add(16 * q).cast(), rounded);
                }
            }
            // SAFETY: a line is as large as a register and aligned.
            let line = unsafe { _mm512_load_si512(codes[i].0.as_ptr().cast()) };
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), line);
        }
        (most, _mm512_reduce_add_epi32(sum))
    }

    /// Computes the products of the codes of 32 outputs with eight rows, times the outputs' factors, and adds the bias.
    ///
    /// # Safety
    /// The processor has AVX-512 with VNNI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn products(
        w: &[u8],
        lines: &[Int8Line],
        blocks: &[Int8BlockScales],
        of_outputs: (&[f32; WIDTH], &[f32; WIDTH]),
        out: &mut [[f32; WIDTH]; ROWS],
    ) {
        let each = w.len() / WIDTH;
        let all = ROWS * each.div_ceil(STEP);
        assert!(w.len() == each * WIDTH && lines.len() == all && blocks.len() == each.div_ceil(BLOCK));
        let parts = each.div_ceil(PART);
        let place = |at| place(at, each, PART);
        let pairs_ahead = AHEAD.div_ceil(2 * each.min(PART));
        let mut sums = [_mm512_setzero_ps(); PAIRS];
        for at in 0..parts * PAIRS {
            let (pair, from) = (at % PAIRS, at / PAIRS * PART);
            let to = each.min(from + PART);
            let of_part = &blocks[from / BLOCK..to.div_ceil(BLOCK)];
            let lines = &lines[from / STEP * ROWS..to.div_ceil(STEP) * ROWS];
            let (first, ahead) = (place(at), place(at + pairs_ahead));
            let rows = [&w[first..first + to - from], &w[first + each..first + each + to - from]];
            let next = w.as_ptr().wrapping_add(ahead);
            // SAFETY: the caller's promise.
            let of_part = unsafe { pair_of_rows(rows, lines, of_part, [next, next.wrapping_add(each)]) };
            sums[pair] = _mm512_add_ps(sums[pair], of_part);
        }
        // SAFETY: the caller's promise.
        unsafe { write_pairs(sums, of_outputs, out) };
    }

    /// Computes the products of two outputs' codes with eight rows, and prefetches memory from `next` on.
    ///
    /// # Safety
    /// The processor has AVX-512 with VNNI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    #[inline]
    unsafe fn pair_of_rows(w: [&[u8]; 2], lines: &[Int8Line], blocks: &[Int8BlockScales], next: [*const u8; 2]) -> __m512 {
        let inputs = w[0].len();
        assert!(w[1].len() == inputs && lines.len() == ROWS * inputs.div_ceil(STEP) && blocks.len() == inputs.div_ceil(BLOCK));
        let mut sums = [_mm512_setzero_ps(); 2 * ROWS];
        for b in 0..blocks.len() {
            let first = b * BLOCK;
            // SAFETY: these steps of both outputs and of all rows are within the lengths just checked.
            unsafe {
                match (inputs - first).div_ceil(STEP) {
                    1 => block::<1>(w, first, lines, &blocks[b], next, &mut sums),
                    _ => block::<STEPS>(w, first, lines, &blocks[b], next, &mut sums),
                }
            }
        }
        lanes_summed(sums)
    }

    /// Adds the products of `S` registers of two outputs' codes from the `first` input on; the last one may be incomplete.
    ///
    /// # Safety
    /// The processor has AVX-512 with VNNI, and there are as many codes of the outputs and of all rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    #[inline]
    unsafe fn block<const S: usize>(
        w: [&[u8]; 2],
        first: usize,
        lines: &[Int8Line],
        block: &Int8BlockScales,
        next: [*const u8; 2],
        sums: &mut [__m512; 2 * ROWS],
    ) {
        // The instruction multiplies unsigned by signed numbers, so weights are offset by 128.
        let flip = _mm512_set1_epi8(-128);
        let mut codes = [[_mm512_setzero_si512(); S]; 2];
        for o in 0..2 {
            for s in 0..S {
                let at = first + s * STEP;
                _mm_prefetch::<_MM_HINT_T1>(next[o].wrapping_add(at).cast());
                let mask = if s + 1 == S { u64::MAX >> STEP.saturating_sub(w[o].len() - at) } else { u64::MAX };
                // SAFETY: the caller's promise; masked codes are not read.
                codes[o][s] = _mm512_xor_si512(unsafe { _mm512_maskz_loadu_epi8(mask, w[o].as_ptr().add(at).cast()) }, flip);
            }
        }
        for r in 0..ROWS {
            let begun = _mm512_zextsi128_si512(_mm_cvtsi32_si128(block.offsets[r]));
            let (mut one, mut other) = (begun, begun);
            for s in 0..S {
                // SAFETY: the caller's promise; lines are aligned.
                let line = unsafe { _mm512_load_si512(lines.as_ptr().add(first / STEP * ROWS + r * S + s).cast()) };
                one = _mm512_dpbusd_epi32(one, codes[0][s], line);
                other = _mm512_dpbusd_epi32(other, codes[1][s], line);
            }
            let scale = _mm512_set1_ps(block.scales[r]);
            sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(one), scale, sums[r]);
            sums[ROWS + r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(other), scale, sums[ROWS + r]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize, d_in: usize) -> Vec<f32> {
        // Some values are much larger than their neighbours.
        (0..n * d_in).map(|i| (((i * 37) % 101) as f32 / 50.0 - 1.0) * if i % 331 == 7 { 90.0 } else { 1.0 }).collect()
    }

    #[test]
    fn values_are_off_by_half_a_step_of_their_block_at_most() {
        for (n, d_in) in [(1, 64), (3, 256), (9, 576), (8, 1024), (2, 1), (9, 1376), (3, 333)] {
            let xs = rows(n, d_in);
            let got = Int8Rows::new(&xs, n, d_in).values();
            assert_eq!(got.len(), xs.len());
            let blocks = |values: &[f32]| -> Vec<Vec<f32>> {
                values.chunks(d_in).flat_map(|row| row.chunks(BLOCK).map(<[f32]>::to_vec)).collect()
            };
            for (block, got) in blocks(&xs).iter().zip(blocks(&got)) {
                let most = block.iter().map(|x| x.abs()).fold(0.0, f32::max);
                for (x, got) in block.iter().zip(got) {
                    assert!((x - got).abs() <= most / 127.0 * 0.500_01, "{x} became {got} in a block up to {most}");
                }
            }
        }
    }

    #[test]
    fn tiny_values_stay_tiny_and_zeros_zeros() {
        for tiny in [1e-37f32, 1e-38, 1e-45] {
            let mut xs = vec![0.0; 128];
            (xs[3], xs[70]) = (tiny, -tiny);
            let got = Int8Rows::new(&xs, 1, 128).values();
            assert!(got.iter().zip(&xs).all(|(got, x)| if *x == 0.0 { *got == 0.0 } else { got.abs() <= 2.0 * tiny }), "{tiny}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn products_are_those_of_the_codes_whatever_the_number_of_rows_and_outputs() {
        if !supported() {
            eprintln!("skipped: this processor has no AVX-512 with VNNI");
            return;
        }
        let sizes = [
            (1, 64, 1),
            (8, 256, 32),
            (9, 320, 33),
            (3, 576, 70),
            (17, 1536, 40),
            (8, 2240, 64),
            (5, 4352, 5),
            (2, 1, 3),
            (9, 1376, 64),
            (3, 3075, 33),
        ];
        for (n, d_in, d_out) in sizes {
            let xs = rows(n, d_in);
            let codes: Vec<u8> = (0..d_out * d_in).map(|i| (((i * 89 + i / 7) % 255) as u8).wrapping_add(129)).collect();
            let scales: Vec<f32> = (0..d_out).map(|o| 0.5 + o as f32 / 8.0).collect();
            let bias: Vec<f32> = (0..d_out.next_multiple_of(WIDTH)).map(|o| (o as f32).sin()).collect();
            let rounded = Int8Rows::new(&xs, n, d_in);
            let (values, mut got) = (rounded.values(), vec![f32::NAN; n * d_out]);
            rounded.products(Int8Weight { codes: &codes, scales: &scales, bias: &bias }, 0..d_out, |first, row, sums, count| {
                got[row * d_out + first..][..count].copy_from_slice(&sums[..count]);
            });
            for (i, got) in got.iter().enumerate() {
                let (row, output) = (i / d_out, i % d_out);
                let code = |k: usize| f64::from(codes[output * d_in + k].cast_signed());
                let terms: Vec<f64> = (0..d_in).map(|k| code(k) * f64::from(values[row * d_in + k])).collect();
                let factor = f64::from(scales[output]) / 127.0;
                let added = f64::from(bias[output]);
                let (want, size) = (
                    factor * terms.iter().sum::<f64>() + added,
                    added.abs() + factor * terms.iter().map(|x| x.abs()).sum::<f64>(),
                );
                assert!(
                    (f64::from(*got) - want).abs() <= 1e-6 * size,
                    "{n} {d_in} {d_out}: row {row}, output {output}: {got}, not {want}"
                );
            }
            // A subset of the outputs and rows gives the same bits.
            let (row, from) = (n - 1, d_out / 64 * WIDTH);
            Int8Rows::new(&xs[row * d_in..], 1, d_in).products(
                Int8Weight { codes: &codes, scales: &scales, bias: &bias },
                from..d_out,
                |first, _, sums, count| {
                    assert_eq!(sums[..count], got[row * d_out + first..][..count], "{n} {d_in} {d_out}");
                },
            );
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn values_that_are_not_finite_are_seen_in_their_rows() {
        if !supported() {
            eprintln!("skipped: this processor has no AVX-512 with VNNI");
            return;
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut xs = rows(3, 320);
            xs[320 + 11] = bad;
            let weight = Int8Weight { codes: &[1; 320 * 2], scales: &[1.0; 2], bias: &[0.0; WIDTH] };
            Int8Rows::new(&xs, 3, 320).products(weight, 0..2, |_, row, sums, count| {
                assert!(sums[..count].iter().all(|x| x.is_finite() == (row != 1)), "row {row} for {bad}: {sums:?}");
            });
        }
    }
}
