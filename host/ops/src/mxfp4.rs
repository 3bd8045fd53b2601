//! MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 numbers of 4 bits, with one sign, two exponent and one mantissa bit, and a
//! power of two for each block.

use super::{Error, Result};
use rayon::prelude::*;

/// Number of values in a block.
pub const BLOCK: usize = 32;

/// Number of bytes of a block's values. The first of a byte's two values is in its low bits.
pub const BYTES: usize = BLOCK / 2;

/// Values by their bits.
const NUMBERS: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Bias of a block's exponent, which is subtracted from its bits.
const BIAS: i32 = 127;

/// Returns the values of blocks, given their bits and their exponents. A block with a NaN exponent has values that are not finite.
pub fn unpack(blocks: &[u8], exponents: &[u8]) -> Result<Vec<f32>> {
    if blocks.len() != exponents.len() * BYTES {
        return Err(Error::Shape { op: "mxfp4", detail: format!("{} bytes for {} blocks", blocks.len(), exponents.len()) });
    }
    let mut values = vec![0f32; exponents.len() * BLOCK];
    let parts = values.par_chunks_mut(BLOCK).zip(blocks.par_chunks(BYTES)).zip(exponents);
    parts.for_each(|((values, bytes), &exponent)| {
        let factor = if exponent == u8::MAX { f64::NAN } else { 2f64.powi(i32::from(exponent) - BIAS) };
        let of = NUMBERS.map(|number| (f64::from(number) * factor) as f32);
        for (pair, byte) in values.chunks_exact_mut(2).zip(bytes) {
            (pair[0], pair[1]) = (of[usize::from(byte & 15)], of[usize::from(byte >> 4)]);
        }
    });
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_their_bits_and_the_blocks_exponent() {
        // Sign, exponent and mantissa: 1.0 is 0 01 0, and the smallest, 0.5, is 0 00 1.
        let number = |bits: u8| {
            let (sign, exponent, fraction) = (bits >> 3, i32::from(bits >> 1 & 3), f32::from(bits & 1));
            let size = if exponent == 0 { fraction / 2.0 } else { (1.0 + fraction / 2.0) * 2f32.powi(exponent - 1) };
            if sign == 1 { -size } else { size }
        };
        let bytes: Vec<u8> = (0..2 * BYTES as u8).map(|i| i.wrapping_mul(37)).collect();
        let values = unpack(&bytes, &[124, 130]).unwrap();
        for (i, value) in values.iter().enumerate() {
            let bits = if i % 2 == 0 { bytes[i / 2] & 15 } else { bytes[i / 2] >> 4 };
            assert_eq!(*value, number(bits) * if i < BLOCK { 0.125 } else { 8.0 }, "{i}");
        }
        assert!(unpack(&[0x22; BYTES], &[255]).unwrap().iter().all(|value| value.is_nan()));
        assert_eq!(unpack(&[0x22; BYTES], &[0]).unwrap()[0], 2f32.powi(-127));
        assert!(unpack(&[0; 15], &[0]).is_err());
    }
}
