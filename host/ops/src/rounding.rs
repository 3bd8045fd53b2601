//! Conversions to bf16.

use super::Result;
use super::simd::wide;
use super::slices::write;
use candle_core::{Tensor, WithDType};
use half::bf16;
use rayon::prelude::*;

/// Number of values that one task rounds.
const TASK: usize = 1 << 14;

/// Element type of elementwise operations: f32, or bf16 where only products read the result, which would round it anyway.
pub(super) trait FloatElement: WithDType {
    /// Returns the value in f32, exactly.
    fn in_f32(self) -> f32;

    /// Returns the value nearest to `x`.
    fn nearest(x: f32) -> Self;
}

impl FloatElement for f32 {
    #[inline(always)]
    fn in_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn nearest(x: f32) -> Self {
        x
    }
}

impl FloatElement for bf16 {
    #[inline(always)]
    fn in_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn nearest(x: f32) -> Self {
        nearest(x)
    }
}

/// Rounds each value to the nearest bf16, on all threads.
pub(super) fn rounded(values: &[f32]) -> Vec<bf16> {
    let mut all = vec![bf16::ZERO; values.len()];
    all.par_chunks_mut(TASK).zip(values.par_chunks(TASK)).for_each(|(all, values)| round_into(values, all));
    all
}

/// Rounds values into a slice of the same length, on this thread.
pub(super) fn round_into(values: &[f32], into: &mut [bf16]) {
    wide!(for (to, x) in into.iter_mut().zip(values) {
        *to = nearest(*x);
    });
}

/// Computes [`bf16::from_f32`] without branches.
#[inline(always)]
fn nearest(x: f32) -> bf16 {
    let bits = x.to_bits();
    let half_way = 0x7fff + (bits >> 16 & 1);
    let finite = bits.wrapping_add(half_way) >> 16;
    // Keeps a NaN whose other upper bits are all zero.
    bf16::from_bits(if x.is_nan() { bits >> 16 | 0x40 } else { finite } as u16)
}

/// Rounds each value of an f32 tensor on the CPU to the nearest bf16, in place.
pub fn round_in_place(t: &Tensor) -> Result<()> {
    write(t, |values| {
        values.par_chunks_mut(TASK).for_each(|values| {
            wide!(for x in values.iter_mut() {
                *x = f32::from_bits(u32::from(nearest(*x).to_bits()) << 16);
            });
        });
    })
}

/// Rounds each value to the nearest bf16 and returns its bits.
pub fn round_bf16(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| bf16::from_f32(*value).to_bits()).collect()
}

/// Converts bf16 bits to values in a slice of the same length.
pub fn widen_bf16(bits: &[u16], into: &mut [f32]) {
    for (value, bits) in into.iter_mut().zip(bits) {
        *value = bf16::from_bits(*bits).to_f32();
    }
}

/// Sums the ranks' values, the same number from each, in f32 and in rank order.
pub fn sum_bf16(parts: &[u16], ranks: usize) -> Vec<f32> {
    let mut sums = vec![0.0; parts.len() / ranks];
    for part in parts.chunks(sums.len().max(1)) {
        for (sum, bits) in sums.iter_mut().zip(part) {
            *sum += bf16::from_bits(*bits).to_f32();
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_without_branches_is_that_of_the_standard_type() {
        let odd =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(0xffff_ffff)];
        let many = (0..40_000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
        let values: Vec<f32> = odd.into_iter().chain(many).collect();
        for (x, got) in values.iter().zip(rounded(&values)) {
            assert_eq!(got.to_bits(), bf16::from_f32(*x).to_bits(), "{x}");
        }
    }

    #[test]
    fn sums_of_bf16_are_rounded_to_the_nearest_once() {
        // 1 + 2^-7 is the next number after 1; halfway rounds to even.
        let next = 1.0 + 2f32.powi(-7);
        let values = [1.0, next, 1.0 + 2f32.powi(-8), 1.0 + 1.01 * 2f32.powi(-8), -3e38, f32::INFINITY];
        let read = |bits: &[u16]| {
            let mut values = vec![0.0; bits.len()];
            widen_bf16(bits, &mut values);
            values
        };
        assert_eq!(read(&round_bf16(&values))[..4], [1.0, next, 1.0, next]);
        assert!(read(&round_bf16(&[f32::NAN]))[0].is_nan());
        // Sums in f32 keep a 1 that bf16 would lose next to 256, 512 times.
        let parts = round_bf16(&[256.0].into_iter().chain([1.0; 512]).collect::<Vec<_>>());
        assert_eq!(sum_bf16(&parts, 513), [768.0]);
        assert_eq!(sum_bf16(&round_bf16(&[1.0, 2.0, 10.0, 20.0]), 2), [11.0, 22.0]);
        assert!(sum_bf16(&[], 3).is_empty());
    }
}
