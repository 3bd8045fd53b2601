//! Dropout whose random numbers depend only on a key, the text up to each token, and the feature. So the same values are dropped however
//! rows are packed, split or recomputed. CPU only.

use super::simd::wide;
use super::slices::{read, tensor, write};
use super::{Error, Forest, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// Selects the values of a packed input that are dropped.
#[derive(Clone, Copy, Debug)]
pub struct DropoutMask<'a> {
    /// A number for each row, from [`Forest::texts`].
    pub rows: &'a [u64],
    /// Distinguishes masks of the same rows.
    pub key: u64,
    /// Dropout probability, less than 1.
    pub p: f64,
}

/// Number of values of a row that are decided together.
const LANES: usize = 16;

/// Mixes a number so that all its bits depend on all of them (the finalizer of SplitMix64, Steele et al. 2014).
#[inline(always)]
pub fn mixed_bits(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Forest {
    /// Returns a number for each token. Numbers almost surely differ unless the texts up to the tokens are equal.
    pub fn texts(&self) -> Vec<u64> {
        let mut texts: Vec<u64> = vec![0; self.len()];
        for segment in self.segments() {
            let mut text = segment.prefix.map_or(0, |p| texts[self.segments()[p].range().end - 1]);
            for i in segment.range() {
                text = mixed_bits(text ^ u64::from(self.tokens()[i]).wrapping_mul(0xD6E8_FEB8_6659_FD93));
                texts[i] = text;
            }
        }
        texts
    }
}

impl DropoutMask<'_> {
    /// Combines each value of a row with its counterpart, by `keep` if it is kept and by `drop` otherwise.
    fn combine(&self, row: usize, from: &[f32], into: &mut [f32], keep: impl Fn(f32, f32) -> f32, drop: impl Fn(f32) -> f32) {
        let begin = mixed_bits(self.rows[row] ^ self.key);
        let dropped = (self.p * 2f64.powi(32)) as u32;
        wide!(for (i, (into, from)) in into.chunks_mut(LANES).zip(from.chunks(LANES)).enumerate() {
            // Each number decides for two neighbours.
            let mut pairs = [0u64; LANES / 2];
            for (pair, bits) in pairs.iter_mut().enumerate() {
                *bits = mixed_bits(begin.wrapping_add((i * LANES / 2 + pair) as u64));
            }
            let bits: [u32; LANES] = std::array::from_fn(|lane| (pairs[lane / 2] >> (32 * (lane % 2))) as u32);
            for ((into, from), bits) in into.iter_mut().zip(from).zip(bits) {
                *into = if bits >= dropped { keep(*into, *from) } else { drop(*into) };
            }
        });
    }

    /// Returns `x: [N, in]` with some values dropped and the others scaled by `1 / (1 - p)`. The gradient is the same map.
    ///
    /// # Errors
    /// If there is not a number for each row, or `x` is not on the CPU.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = self.sizes(x)?;
        let (read, scale) = (read(x)?, self.scale());
        let xs = &read[..];
        let mut out = vec![0f32; rows * width];
        out.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, out)| {
            self.combine(row, &xs[row * width..(row + 1) * width], out, |_, x| x * scale, |_| 0.0);
        });
        tensor(out, x.shape())
    }

    /// Adds the result of [`DropoutMask::apply`] for `d` to `dx`.
    ///
    /// # Errors
    /// As [`DropoutMask::apply`].
    pub fn add_applied(&self, d: &Tensor, dx: &Tensor) -> Result<()> {
        let (_, width) = self.sizes(d)?;
        if dx.elem_count() != d.elem_count() {
            return Err(Error::Shape { op: "dropout", detail: format!("{:?} += {:?}", dx.shape(), d.shape()) });
        }
        let (ds, scale) = (read(d)?, self.scale());
        write(dx, |dx| {
            dx.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, dx)| {
                self.combine(row, &ds[row * width..(row + 1) * width], dx, |dx, d| dx + d * scale, |dx| dx);
            });
        })
    }

    fn scale(&self) -> f32 {
        (1.0 / (1.0 - self.p)) as f32
    }

    fn sizes(&self, x: &Tensor) -> Result<(usize, usize)> {
        let (rows, width) = matrix_dims(x);
        if rows != self.rows.len() {
            return Err(Error::Shape { op: "dropout", detail: format!("{:?} for {} rows", x.shape(), self.rows.len()) });
        }
        Ok((rows, width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn each_value_is_kept_or_dropped_by_its_own_half_of_a_number() {
        for (width, p) in [(1, 0.5), (7, 0.1), (16, 0.9), (33, 0.3), (1000, 0.05)] {
            let rows = [5, u64::MAX, 0];
            let mask = DropoutMask { rows: &rows, key: 77, p };
            let value = |row: usize, at: usize| (row * width + at) as f32 + 1.0;
            let kept = |row: usize, at: usize| {
                let bits = mixed_bits(mixed_bits(rows[row] ^ 77).wrapping_add(at as u64 / 2));
                let half = if at.is_multiple_of(2) { bits & 0xFFFF_FFFF } else { bits >> 32 };
                half as f64 >= (p * 2f64.powi(32)).floor()
            };
            let places = || (0..rows.len()).flat_map(|row| (0..width).map(move |at| (row, at)));
            let tensor = |values: Vec<f32>| Tensor::from_vec(values, (rows.len(), width), &Device::Cpu).unwrap();
            let scaled = |(row, at)| if kept(row, at) { value(row, at) * (1.0 / (1.0 - p)) as f32 } else { 0.0 };
            let want: Vec<f32> = places().map(scaled).collect();
            let x = tensor(places().map(|(row, at)| value(row, at)).collect());
            assert_eq!(crate::to_vec(&mask.apply(&x).unwrap()).unwrap(), want, "{width} values, {p}");
            let dx = tensor(vec![0.5; rows.len() * width]);
            mask.add_applied(&x, &dx).unwrap();
            let want: Vec<f32> = want.iter().map(|x| 0.5 + x).collect();
            assert_eq!(crate::to_vec(&dx).unwrap(), want, "{width} values, {p}");
            let share = places().filter(|&(row, at)| !kept(row, at)).count() as f64 / (rows.len() * width) as f64;
            assert!(width < 1000 || (share - p).abs() < 0.02, "{share} are dropped instead of {p}");
        }
    }
}
