//! Weights in 8 or 4 bits, for models that an adapter is trained on, with the format and values of bitsandbytes.
//!
//! 8 bits (LLM.int8(), Dettmers et al. 2022, arXiv 2208.07339): each output's weights are integers from -127 to 127, and 127 represents the
//! largest magnitude among them. 4 bits (NF4, Dettmers et al. 2023, arXiv 2305.14314): 64 weights in row-major order share a scale, their
//! largest magnitude, and each is one of 16 quantiles of a normal distribution. Two weights share a byte, the first in the high half.
//! Scales always have 32 bits.

use super::codes::{BLOCK, codes_of_4_bits, codes_of_8_bits, largest};
use super::weight_storage::{WeightMatrix, WeightValues};
use super::{Error, Result, matrix_dims};
use candle_core::{Device, Tensor};
use rayon::prelude::*;

pub use super::codes::{QuantizationScheme, QuantizedWeight};

impl QuantizationScheme {
    /// Quantizes a weight `[out, in]`; returns its codes and its scales.
    ///
    /// # Errors
    /// If the scheme has 4 bits and the number of inputs is odd.
    pub fn quantize(self, w: &Tensor) -> Result<(Tensor, Tensor)> {
        let (d_out, d_in) = matrix_dims(w);
        if !d_in.is_multiple_of(self.codes_per_byte()) {
            return Err(Error::Shape { op: "quantize", detail: format!("{d_in} inputs don't fill bytes of two weights") });
        }
        let values = WeightValues::open(WeightMatrix::Plain(w))?;
        let (codes_shape, scales_shape) = self.shapes(d_out, d_in);
        let group = if self == Self::Int8 { d_in } else { BLOCK };
        let total = d_out * d_in;
        let mut codes = vec![0u8; codes_shape.iter().product()];
        let mut scales = vec![0f32; scales_shape.iter().product()];
        let groups = codes.par_chunks_mut((group / self.codes_per_byte()).max(1)).zip(&mut scales).enumerate();
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::{CODE_STEP, LARGEST_CODE, NF4};

    fn matrix(d_out: usize, d_in: usize) -> (Vec<f32>, Tensor) {
        let values: Vec<f32> = (0..d_out * d_in).map(|i| ((i * i * 37 + i * 11) % 1009) as f32 / 504.5 - 1.0).collect();
        (values.clone(), Tensor::from_vec(values, (d_out, d_in), &Device::Cpu).unwrap())
    }

    fn back(scheme: QuantizationScheme, w: &Tensor) -> Vec<f32> {
        let (codes, scales) = scheme.quantize(w).unwrap();
        let stored =
            WeightValues::open(WeightMatrix::Quantized(QuantizedWeight { codes: &codes, scales: &scales, scheme })).unwrap();
        stored.widened(0..w.elem_count())
    }

    /// Returns the quantile of a normal distribution for this share, by bisecting its integral.
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
        // Rows that are not a multiple of a block, and an incomplete last block.
        for (d_out, d_in) in [(1, 2), (3, 64), (5, 70), (4, 130)] {
            let (values, w) = matrix(d_out, d_in);
            let got = back(QuantizationScheme::Nf4, &w);
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
        assert!(QuantizationScheme::Nf4.quantize(&matrix(2, 3).1).is_err());
    }

    #[test]
    fn weights_in_8_bits_are_off_by_half_a_step_of_their_row_at_most() {
        let (values, w) = matrix(7, 33);
        let got = back(QuantizationScheme::Int8, &w);
        for (row, got) in values.chunks(33).zip(got.chunks(33)) {
            let scale = row.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (x, got) in row.iter().zip(got) {
                assert!((x - got).abs() <= scale / LARGEST_CODE * 0.500_01, "{x} became {got}");
                let code = got / (scale * CODE_STEP);
                assert!((code - code.round()).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn rows_of_tiny_values_keep_their_signs_and_a_value_that_is_none_is_not_hidden() {
        let tiny = Tensor::from_vec(vec![1e-38f32, -1e-38, 0.0, 0.0, f32::NAN, 1.0, 2.0, 3.0], (2, 4), &Device::Cpu).unwrap();
        let got = back(QuantizationScheme::Int8, &tiny);
        assert!(got[0] >= 0.0 && got[1] <= 0.0 && got[..4].iter().all(|x| x.abs() <= 1e-38), "{got:?}");
        assert!(got[4..].iter().all(|x| x.is_nan()), "{got:?}");
    }

    #[test]
    fn zeros_stay_zeros_and_any_part_can_be_read() {
        let zeros = Tensor::zeros((4, 64), candle_core::DType::F32, &Device::Cpu).unwrap();
        for scheme in [QuantizationScheme::Int8, QuantizationScheme::Nf4] {
            assert!(back(scheme, &zeros).iter().all(|x| *x == 0.0));
            let (_, w) = matrix(6, 134);
            let (codes, scales) = scheme.quantize(&w).unwrap();
            let stored =
                WeightValues::open(WeightMatrix::Quantized(QuantizedWeight { codes: &codes, scales: &scales, scheme })).unwrap();
            let all = stored.widened(0..6 * 134);
            for (from, to) in [(0, 1), (1, 2), (1, 80), (63, 65), (127, 300), (5, 5), (6 * 134 - 1, 6 * 134)] {
                assert_eq!(stored.widened(from..to), all[from..to], "{scheme:?} {from} to {to}");
            }
        }
    }
}
