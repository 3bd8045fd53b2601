//! Dropout whose random numbers depend on what is dropped: a key, the text up to each token, and the feature. So the same values
//! are dropped however rows are packed, split or recomputed. CPU only.

use super::cpu::{read, tensor, write};
use super::{Error, Forest, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// Which values of a packed input are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// A number for each row, from [`Forest::texts`].
    pub rows: &'a [u64],
    /// Distinguishes masks of the same rows.
    pub key: u64,
    /// Probability with which a value is dropped; less than 1.
    pub p: f64,
}

/// Mixes a number so that all its bits depend on all of them (the finalizer of SplitMix64, Steele et al. 2014).
pub fn mixed_bits(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Forest {
    /// Returns a number for each token that almost surely differs from others' unless the texts up to them are equal.
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

impl Mask<'_> {
    /// Calls `change` with each kept value of the second slice and its counterpart in the first, which begins a row.
    fn kept(&self, row: usize, width: usize, mut keep: impl FnMut(usize)) {
        let begin = mixed_bits(self.rows[row] ^ self.key);
        let dropped = (self.p * 2f64.powi(32)) as u64;
        for pair in 0..width.div_ceil(2) {
            let bits = mixed_bits(begin.wrapping_add(pair as u64));
            for (at, bits) in [(2 * pair, bits & 0xFFFF_FFFF), (2 * pair + 1, bits >> 32)] {
                if at < width && bits >= dropped {
                    keep(at);
                }
            }
        }
    }

    /// Returns `x: [N, in]` with values dropped and the others scaled by `1 / (1 - p)`. The gradient of this is the same map.
    ///
    /// # Errors
    /// If there is not a number for each row, or `x` is not on the CPU.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = self.sizes(x)?;
        let (read, scale) = (read(x)?, self.scale());
        let xs = &read[..];
        let mut out = vec![0f32; rows * width];
        out.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, out)| {
            self.kept(row, width, |at| out[at] = xs[row * width + at] * scale);
        });
        tensor(out, x.shape())
    }

    /// Adds what [`Mask::apply`] returns for `d` to `dx`.
    ///
    /// # Errors
    /// As [`Mask::apply`].
    pub fn add_applied(&self, d: &Tensor, dx: &Tensor) -> Result<()> {
        let (_, width) = self.sizes(d)?;
        if dx.elem_count() != d.elem_count() {
            return Err(Error::Shape { op: "dropout", detail: format!("{:?} += {:?}", dx.shape(), d.shape()) });
        }
        let (ds, scale) = (read(d)?, self.scale());
        write(dx, |dx| {
            dx.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, dx)| {
                self.kept(row, width, |at| dx[at] += ds[row * width + at] * scale);
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
