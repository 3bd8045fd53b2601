//! Formats of quantized weights: how codes and scales encode values.

use super::matrix_dims;
#[cfg(target_arch = "x86_64")]
use super::simd;
use candle_core::Tensor;
use std::mem::MaybeUninit;

/// Number of weights that share a scale in 4 bits.
pub(super) const BLOCK: usize = 64;

/// Maximum code in 8 bits.
pub(super) const LARGEST_CODE: f32 = 127.0;

/// Factor by which bitsandbytes multiplies products of codes and scales.
pub(super) const CODE_STEP: f32 = 1.0 / 127.0;

/// The 16 values of NF4, from bitsandbytes.
pub(super) const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// A format of quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantizationScheme {
    /// 8-bit integers with a scale for each output.
    Int8,
    /// 4-bit NF4 with a scale for each block.
    Nf4,
}

/// A quantized weight `[out, in]`.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedWeight<'a> {
    /// Codes as bytes: `[out, in]` in 8 bits, `[out, in / 2]` in 4 bits.
    pub codes: &'a Tensor,
    /// Scales in f32, one for each output or each block.
    pub scales: &'a Tensor,
    /// The format of the codes.
    pub scheme: QuantizationScheme,
}

impl QuantizedWeight<'_> {
    /// Returns the numbers of outputs and inputs.
    pub(super) fn dims(&self) -> (usize, usize) {
        let (d_out, bytes) = matrix_dims(self.codes);
        (d_out, bytes * self.scheme.codes_per_byte())
    }
}

impl QuantizationScheme {
    /// Returns the number of weights in a byte.
    pub fn codes_per_byte(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Nf4 => 2,
        }
    }

    /// Returns the shapes of the codes and of the scales of a weight.
    pub fn shapes(self, d_out: usize, d_in: usize) -> (Vec<usize>, Vec<usize>) {
        match self {
            Self::Int8 => (vec![d_out, d_in], vec![d_out]),
            Self::Nf4 => (vec![d_out, d_in / 2], vec![(d_out * d_in).div_ceil(BLOCK)]),
        }
    }

    /// Decodes the weights starting with `first`, in row-major order.
    pub(super) fn widen(self, codes: &[u8], scales: &[f32], d_in: usize, first: usize, out: &mut [MaybeUninit<f32>]) {
        let group = if self == Self::Int8 { d_in } else { BLOCK };
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let count = rest.len().min((at / group + 1) * group - at);
            let (part, more) = rest.split_at_mut(count);
            let scale = scales[at / group];
            match self {
                Self::Int8 => widen_8_bits(&codes[at..at + count], scale, part),
                Self::Nf4 => widen_4_bits(codes, scale, at, part),
            }
            (at, rest) = (at + count, more);
        }
    }
}

/// Returns the largest magnitude, or NaN if a value is NaN.
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut most = 0;
    // Magnitudes are ordered like their bits, and the maximum of integers does not depend on the order of evaluation.
    super::simd::wide!(for x in values {
        most = (x.to_bits() & 0x7fff_ffff).max(most);
    });
    f32::from_bits(most)
}

pub(super) fn codes_of_8_bits(values: &[f32], scale: f32, codes: &mut [u8]) {
    let factor = if scale > 0.0 { LARGEST_CODE / scale } else { 0.0 };
    super::simd::wide!(for (code, x) in codes.iter_mut().zip(values) {
        *code = ((x * factor).round_ties_even().clamp(-LARGEST_CODE, LARGEST_CODE) as i32 as i8).cast_unsigned();
    });
}

pub(super) fn codes_of_4_bits(values: &[f32], scale: f32, codes: &mut [u8]) {
    let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    // Finds the nearest value, or the lower one if both are equally near.
    let code = |x: &f32| NF4.windows(2).filter(|pair| x * factor > (pair[0] + pair[1]) / 2.0).count() as u8;
    for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
        *byte = code(&pair[0]) << 4 | pair.get(1).map_or(0, code);
    }
}

fn widen_8_bits(codes: &[u8], scale: f32, out: &mut [MaybeUninit<f32>]) {
    super::simd::wide!(for (o, code) in out.iter_mut().zip(codes) {
        o.write(f32::from(code.cast_signed()) * scale * CODE_STEP);
    });
}

/// Decodes weights of one block, starting at this position among all codes.
fn widen_4_bits(codes: &[u8], scale: f32, at: usize, out: &mut [MaybeUninit<f32>]) {
    let values = NF4.map(|x| x * scale);
    let (first, rest) = out.split_at_mut(at % 2);
    for value in first {
        value.write(values[usize::from(codes[at / 2] & 15)]);
    }
    let codes = &codes[at.div_ceil(2)..];
    #[cfg(target_arch = "x86_64")]
    let (codes, rest) = if simd::wide_registers() {
        let (whole, rest) = rest.split_at_mut(rest.len() / 8 * 8);
        // SAFETY: the processor has AVX2.
        unsafe { avx2(&codes[..whole.len() / 2], &values, whole) };
        (&codes[whole.len() / 2..], rest)
    } else {
        (codes, rest)
    };
    for (pair, code) in rest.chunks_mut(2).zip(codes) {
        pair[0].write(values[usize::from(code >> 4)]);
        if let Some(second) = pair.get_mut(1) {
            second.write(values[usize::from(code & 15)]);
        }
    }
}

/// Looks up eight codes at a time, with half of the values in each of two registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(codes: &[u8], values: &[f32; 16], out: &mut [MaybeUninit<f32>]) {
    use std::arch::x86_64::*;
    // SAFETY: values has two registers of eight.
    let (low, high) = unsafe { (_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))) };
    let shifts = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    for (codes, out) in codes.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<8>().0) {
        let codes = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(*codes)), shifts);
        let (below, above) = (_mm256_permutevar8x32_ps(low, codes), _mm256_permutevar8x32_ps(high, codes));
        // A code's highest bit selects the half.
        let half = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
        // SAFETY: there is room for eight values.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), _mm256_blendv_ps(below, above, half)) };
    }
}
