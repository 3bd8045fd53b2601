//! Encodes values in the precisions of a GGUF file.

use super::gguf_tensor::GgufTensor;
use super::precision::BLOCK;
use super::{Error, GgufPrecision, Result};
use crate::ops;
use half::{bf16, f16};
use std::io::Write;

/// Number of values that are converted at once, at least a row.
const AT_ONCE: usize = 1 << 22;

/// Converts tensors and writes them; reuses its memory between tensors.
#[derive(Default)]
pub(super) struct GgufEncoder {
    bytes: Vec<u8>,
}

impl GgufEncoder {
    /// Writes the values of a tensor, row by row of its outermost dimension.
    ///
    /// # Errors
    /// If writing fails, or a value is out of the precision's range.
    pub(super) fn write(&mut self, part: &GgufTensor, to: &mut impl Write) -> Result<()> {
        let view = &part.values;
        let rows = view.dim(0)?;
        let at_once = (AT_ONCE / (view.elem_count() / rows.max(1)).max(1)).max(1);
        for start in (0..rows).step_by(at_once) {
            let some = view.narrow(0, start, at_once.min(rows - start))?.contiguous()?;
            let values = ops::to_vec(&some)?;
            self.bytes.clear();
            if !encode(&values, part.precision, &mut self.bytes) {
                return Err(Error::OutOfRange { tensor: part.name.clone(), precision: part.precision });
            }
            to.write_all(&self.bytes).map_err(Error::Write)?;
        }
        Ok(())
    }
}

/// Appends values in a precision; returns whether all of them are in its range.
fn encode(values: &[f32], precision: GgufPrecision, bytes: &mut Vec<u8>) -> bool {
    match precision {
        GgufPrecision::F32 => {
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            values.iter().all(|value| value.is_finite())
        }
        GgufPrecision::F16 => {
            let fit = values.iter().all(|value| f16::from_f32(*value).is_finite());
            bytes.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()));
            fit
        }
        GgufPrecision::Bf16 => {
            let fit = values.iter().all(|value| bf16::from_f32(*value).is_finite());
            bytes.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()));
            fit
        }
        GgufPrecision::Q8 => values.chunks(BLOCK).all(|block| encode_block(block, bytes)),
    }
}

/// Appends a block of 8 bits: a scale, and each value as a multiple of it from -127 to 127 (ggml's `quantize_row_q8_0_ref`).
/// Values are divided by the scale before it is rounded.
fn encode_block(block: &[f32], bytes: &mut Vec<u8>) -> bool {
    let factor = block.iter().fold(0.0f32, |most, value| most.max(value.abs())) / 127.0;
    let inverse = if factor == 0.0 { 0.0 } else { factor.recip() };
    let rounded = f16::from_f32(factor);
    bytes.extend(rounded.to_le_bytes());
    bytes.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
    rounded.is_finite() && block.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_eight_bits_are_multiples_of_a_factor_that_is_rounded_after_dividing() {
        // The scale is a third, so each value is a multiple of it.
        let block: Vec<f32> = (0..32).map(|i| if i == 0 { -127.0 / 3.0 } else { i as f32 / 3.0 }).collect();
        let mut bytes = Vec::new();
        assert!(encode(&block, GgufPrecision::Q8, &mut bytes));
        assert_eq!(bytes.len() as u64, GgufPrecision::Q8.bytes(32));
        assert_eq!(f16::from_le_bytes([bytes[0], bytes[1]]), f16::from_f32(1.0 / 3.0));
        let codes: Vec<i8> = bytes[2..].iter().map(|byte| *byte as i8).collect();
        let want: Vec<i8> = (0..32).map(|i| if i == 0 { -127 } else { i }).collect();
        assert_eq!(codes, want);
        bytes.clear();
        assert!(encode(&[0.0; 32], GgufPrecision::Q8, &mut bytes) && bytes == [0; 34]);
        // Halves round away from zero.
        let mut halves = [0.0; 32];
        (halves[0], halves[1], halves[2]) = (127.0, 0.5, -2.5);
        bytes.clear();
        assert!(encode(&halves, GgufPrecision::Q8, &mut bytes));
        assert_eq!(bytes[2..5], [127, 1, -3i8 as u8]);
    }

    #[test]
    fn values_that_do_not_fit_are_found() {
        for (precision, most, more) in [
            (GgufPrecision::F16, 65504.0, 65520.0),
            (GgufPrecision::Bf16, 3.38e38, 3.4e38),
            (GgufPrecision::Q8, 127.0 * 65504.0, 127.0 * 65520.0),
        ] {
            let of = |value: f32| encode(&[value; 32], precision, &mut Vec::new());
            assert!(of(most) && of(-most) && !of(more) && !of(-more), "{precision:?}");
        }
    }
}
