//! Weights in 8 or 4 bits, for models that an adapter is trained on, with the format and values of bitsandbytes.
//!
//! 8 bits (LLM.int8(), Dettmers et al. 2022, arXiv 2208.07339): each output's weights are integers from -127 to 127, and 127
//! stands for the largest magnitude among them. 4 bits (NF4, Dettmers et al. 2023, arXiv 2305.14314): 64 weights in row-major
//! order share a scale, their largest magnitude, and each is one of 16 quantiles of a normal distribution, two to a byte with the
//! first in the high half. Scales always have 32 bits.

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::stored::Stored;
use super::{Error, Matrix, Result, matrix_dims};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Weights that share a scale in 4 bits.
pub(super) const BLOCK: usize = 64;

/// Largest code in 8 bits.
pub(super) const MOST: f32 = 127.0;

/// The factor by which bitsandbytes multiplies products of codes and scales.
pub(super) const A_CODE: f32 = 1.0 / 127.0;

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

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In 8 bits.
    Int8,
    /// In 4 bits.
    Nf4,
}

/// A quantized weight `[out, in]`.
#[derive(Clone, Copy, Debug)]
pub struct Quantized<'a> {
    /// In 8 bits `[out, in]`, in 4 bits `[out, in / 2]`, as bytes.
    pub codes: &'a Tensor,
    /// f32, one for each output or for each block.
    pub scales: &'a Tensor,
    /// The format of the codes.
    pub scheme: Scheme,
}

impl Quantized<'_> {
    /// Returns outputs and inputs.
    pub(super) fn dims(&self) -> (usize, usize) {
        let (d_out, bytes) = matrix_dims(self.codes);
        (d_out, bytes * self.scheme.a_byte())
    }
}

impl Scheme {
    /// Returns the number of weights in a byte.
    pub fn a_byte(self) -> usize {
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

    /// Quantizes a weight `[out, in]`; returns its codes and its scales.
    ///
    /// # Errors
    /// If it is to be stored in 4 bits and its inputs are not even.
    pub fn quantize(self, w: &Tensor) -> Result<(Tensor, Tensor)> {
        let (d_out, d_in) = matrix_dims(w);
        if !d_in.is_multiple_of(self.a_byte()) {
            return Err(Error::Shape { op: "quantize", detail: format!("{d_in} inputs don't fill bytes of two weights") });
        }
        let values = Stored::of(Matrix::Plain(w))?;
        let (codes_shape, scales_shape) = self.shapes(d_out, d_in);
        let group = if self == Self::Int8 { d_in } else { BLOCK };
        let total = d_out * d_in;
        let mut codes = vec![0u8; codes_shape.iter().product()];
        let mut scales = vec![0f32; scales_shape.iter().product()];
        let groups = codes.par_chunks_mut((group / self.a_byte()).max(1)).zip(&mut scales).enumerate();
        groups.for_each(|(i, (codes, scale))| {
            let values = values.values(i * group..total.min((i + 1) * group));
            *scale = largest(&values);
            match self {
                Self::Int8 => codes_of_8_bits(&values, *scale, codes),
                Self::Nf4 => codes_of_4_bits(&values, *scale, codes),
            }
        });
        Ok((Tensor::from_vec(codes, codes_shape, &Device::Cpu)?, Tensor::from_vec(scales, scales_shape, &Device::Cpu)?))
    }

    /// Writes the weights starting with `first`, in row-major order.
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

/// Returns the largest magnitude, NaN if a value is.
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut most = 0;
    // Magnitudes have the order of their bits, whose maximum has no order of its own.
    super::simd::wide!(for x in values {
        most = (x.to_bits() & 0x7fff_ffff).max(most);
    });
    f32::from_bits(most)
}

pub(super) fn codes_of_8_bits(values: &[f32], scale: f32, codes: &mut [u8]) {
    let factor = if scale > 0.0 { MOST / scale } else { 0.0 };
    super::simd::wide!(for (code, x) in codes.iter_mut().zip(values) {
        *code = ((x * factor).round_ties_even().clamp(-MOST, MOST) as i32 as i8).cast_unsigned();
    });
}

fn codes_of_4_bits(values: &[f32], scale: f32, codes: &mut [u8]) {
    let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    // The nearest value, the lower one if both are as near.
    let code = |x: &f32| NF4.windows(2).filter(|pair| x * factor > (pair[0] + pair[1]) / 2.0).count() as u8;
    for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
        *byte = code(&pair[0]) << 4 | pair.get(1).map_or(0, code);
    }
}

fn widen_8_bits(codes: &[u8], scale: f32, out: &mut [MaybeUninit<f32>]) {
    super::simd::wide!(for (o, code) in out.iter_mut().zip(codes) {
        o.write(f32::from(code.cast_signed()) * scale * A_CODE);
    });
}

/// Writes weights of one block, starting at this position among all codes.
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

/// Looks up eight codes at a time, half of the values in a register each.
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
        // A code's highest bit says which half.
        let half = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
        // SAFETY: there is room for eight values.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), _mm256_blendv_ps(below, above, half)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(d_out: usize, d_in: usize) -> (Vec<f32>, Tensor) {
        let values: Vec<f32> = (0..d_out * d_in).map(|i| ((i * i * 37 + i * 11) % 1009) as f32 / 504.5 - 1.0).collect();
        (values.clone(), Tensor::from_vec(values, (d_out, d_in), &Device::Cpu).unwrap())
    }

    fn back(scheme: Scheme, w: &Tensor) -> Vec<f32> {
        let (codes, scales) = scheme.quantize(w).unwrap();
        let stored = Stored::of(Matrix::Quantized(Quantized { codes: &codes, scales: &scales, scheme })).unwrap();
        stored.widened(0..w.elem_count())
    }

    /// Returns the value below which this share of a normal distribution lies, by bisecting its integral.
    fn quantile(share: f64) -> f64 {
        let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let below = |x: f64| {
            let (n, mut sum) = (2000, 0.0);
            for i in 0..n {
                let (a, b) = (x * f64::from(i) / f64::from(n), x * f64::from(i + 1) / f64::from(n));
                sum += (b - a) / 6.0 * (density(a) + 4.0 * density(f64::midpoint(a, b)) + density(b));
            }
            0.5 + sum
        };
        let (mut low, mut high) = (-8.0, 8.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if below(middle) < share { low = middle } else { high = middle }
        }
        low
    }

    #[test]
    fn nf4_has_the_published_quantiles() {
        // `create_normal_map` of bitsandbytes: 8 quantiles above zero, 7 below, evenly from 0.9677083 to 1/2.
        let offset = 0.967_708_3;
        let spread = |n: i32| (0..n - 1).map(move |i| offset + (0.5 - offset) * f64::from(i) / f64::from(n - 1));
        let mut values: Vec<f64> = spread(9).map(quantile).chain(spread(8).map(|share| -quantile(share))).chain([0.0]).collect();
        values.sort_by(f64::total_cmp);
        let most = values[15];
        for (value, own) in values.iter().zip(NF4) {
            assert!((value / most - f64::from(own)).abs() < 1e-6, "{} and {own}", value / most);
        }
    }

    #[test]
    fn weights_in_4_bits_are_the_nearest_values_times_the_largest_of_their_block() {
        // Rows that are no multiple of a block, and a last block that is not full.
        for (d_out, d_in) in [(1, 2), (3, 64), (5, 70), (4, 130)] {
            let (values, w) = matrix(d_out, d_in);
            let got = back(Scheme::Nf4, &w);
            for (block, got) in values.chunks(BLOCK).zip(got.chunks(BLOCK)) {
                let scale = block.iter().fold(0f32, |most, x| most.max(x.abs()));
                for (x, got) in block.iter().zip(got) {
                    let far = |value: f32| (f64::from(value) * f64::from(scale) - f64::from(*x)).abs();
                    let nearest = NF4.iter().map(|v| far(*v)).fold(f64::INFINITY, f64::min);
                    let own = (f64::from(*got) - f64::from(*x)).abs();
                    assert!(own <= nearest + 1e-7, "{x} of a block with {scale} became {got}");
                    assert!(NF4.iter().any(|v| v * scale == *got));
                }
            }
        }
        assert!(Scheme::Nf4.quantize(&matrix(2, 3).1).is_err());
    }

    #[test]
    fn weights_in_8_bits_are_off_by_half_a_step_of_their_row_at_most() {
        let (values, w) = matrix(7, 33);
        let got = back(Scheme::Int8, &w);
        for (row, got) in values.chunks(33).zip(got.chunks(33)) {
            let scale = row.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (x, got) in row.iter().zip(got) {
                assert!((x - got).abs() <= scale / MOST * 0.500_01, "{x} became {got}");
                let code = got / (scale * A_CODE);
                assert!((code - code.round()).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn rows_of_tiny_values_keep_their_signs_and_a_value_that_is_none_is_not_hidden() {
        let tiny = Tensor::from_vec(vec![1e-38f32, -1e-38, 0.0, 0.0, f32::NAN, 1.0, 2.0, 3.0], (2, 4), &Device::Cpu).unwrap();
        let got = back(Scheme::Int8, &tiny);
        assert!(got[0] >= 0.0 && got[1] <= 0.0 && got[..4].iter().all(|x| x.abs() <= 1e-38), "{got:?}");
        assert!(got[4..].iter().all(|x| x.is_nan()), "{got:?}");
    }

    #[test]
    fn zeros_stay_zeros_and_any_part_can_be_read() {
        let zeros = Tensor::zeros((4, 64), candle_core::DType::F32, &Device::Cpu).unwrap();
        for scheme in [Scheme::Int8, Scheme::Nf4] {
            assert!(back(scheme, &zeros).iter().all(|x| *x == 0.0));
            let (_, w) = matrix(6, 134);
            let (codes, scales) = scheme.quantize(&w).unwrap();
            let stored = Stored::of(Matrix::Quantized(Quantized { codes: &codes, scales: &scales, scheme })).unwrap();
            let all = stored.widened(0..6 * 134);
            for (from, to) in [(0, 1), (1, 2), (1, 80), (63, 65), (127, 300), (5, 5), (6 * 134 - 1, 6 * 134)] {
                assert_eq!(stored.widened(from..to), all[from..to], "{scheme:?} {from} to {to}");
            }
        }
    }
}
