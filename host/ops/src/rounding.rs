//! Converts numbers to bf16, for exchange between processes.

use half::bf16;

/// Rounds each value to the nearest bf16 and returns its bits.
pub fn round_bf16(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| bf16::from_f32(*value).to_bits()).collect()
}

/// Converts bf16 bits to values, into a slice of the same length.
pub fn widen_bf16(bits: &[u16], into: &mut [f32]) {
    for (value, bits) in into.iter_mut().zip(bits) {
        *value = bf16::from_bits(*bits).to_f32();
    }
}

/// Sums equally many values from each rank, in f32 and in rank order.
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
        // Added in f32, a 1 that bf16 would lose beside 256 is not lost: 512 times.
        let parts = round_bf16(&[256.0].into_iter().chain([1.0; 512]).collect::<Vec<_>>());
        assert_eq!(sum_bf16(&parts, 513), [768.0]);
        assert_eq!(sum_bf16(&round_bf16(&[1.0, 2.0, 10.0, 20.0]), 2), [11.0, 22.0]);
        assert!(sum_bf16(&[], 3).is_empty());
    }
}
