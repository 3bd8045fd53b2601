//! Uniform noise whose random numbers depend only on a key, the text up to each token, and the feature, as in `dropout.rs`. So the noise is
//! the same however rows are packed, split or recomputed. CPU only.

use super::dropout::mixed_bits;
use super::slices::write;
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// Noise for a packed input.
#[derive(Clone, Copy, Debug)]
pub struct UniformNoise<'a> {
    /// A number for each row, from [`super::Forest::texts`].
    pub rows: &'a [u64],
    /// Maximum magnitude of each row's noise.
    pub bounds: &'a [f32],
    /// Distinguishes noise of the same rows.
    pub key: u64,
}

impl UniformNoise<'_> {
    /// Adds to each value of `x: [N, D]` an independent number that is uniform between minus and plus the row's bound.
    ///
    /// # Errors
    /// If there is not a number and a bound for each row, or `x` is not on the CPU.
    pub fn add_to(&self, x: &Tensor) -> Result<()> {
        let (rows, width) = matrix_dims(x);
        if rows != self.rows.len() || rows != self.bounds.len() {
            let detail = format!("{:?} for {} rows with {} bounds", x.shape(), self.rows.len(), self.bounds.len());
            return Err(Error::Shape { op: "noise", detail });
        }
        write(x, |x| {
            x.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, x)| {
                let (begin, bound) = (mixed_bits(self.rows[row] ^ self.key), self.bounds[row]);
                for (pair, values) in x.chunks_mut(2).enumerate() {
                    let bits = mixed_bits(begin.wrapping_add(pair as u64));
                    values.iter_mut().zip([bits as u32, (bits >> 32) as u32]).for_each(|(x, bits)| *x += bound * between(bits));
                }
            });
        })
    }
}

/// Returns the midpoint of one of 2^32 equal parts of the interval from -1 to 1.
fn between(bits: u32) -> f32 {
    ((f64::from(bits) + 0.5) / 2f64.powi(31) - 1.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Forest, to_vec};
    use candle_core::{DType, Device};

    const ROWS: usize = 400;
    const WIDTH: usize = 101;

    /// The noise of a text of this many tokens, with each row's number as its bound.
    fn noise(key: u64) -> Vec<f64> {
        let mut forest = Forest::new();
        forest.push(&(0..ROWS as u32).collect::<Vec<u32>>(), None);
        let (texts, bounds) = (forest.texts(), (0..ROWS).map(|row| 1.0 + row as f32).collect::<Vec<_>>());
        let x = Tensor::zeros((ROWS, WIDTH), DType::F32, &Device::Cpu).unwrap();
        UniformNoise { rows: &texts, bounds: &bounds, key }.add_to(&x).unwrap();
        to_vec(&x).unwrap().into_iter().enumerate().map(|(i, x)| f64::from(x) / (1 + i / WIDTH) as f64).collect()
    }

    #[test]
    fn noise_is_uniform_within_each_rows_bound_and_independent_by_key_row_and_feature() {
        let (one, other) = (noise(1), noise(2));
        assert!(one.iter().all(|x| x.abs() <= 1.0) && one == noise(1) && one != other);
        let n = one.len() as f64;
        let mean = |of: &dyn Fn(usize) -> f64| (0..one.len()).map(of).sum::<f64>() / n;
        // Moments of the uniform distribution between -1 and 1: E x^k is 1 / (k + 1) for even k, 0 for odd k; within five standard
        // deviations, where the variance of x^k is 1 / (2 k + 1) - (E x^k)^2.
        for k in 1..=4 {
            let want = if k % 2 == 0 { 1.0 / f64::from(k + 1) } else { 0.0 };
            let deviation = ((1.0 / f64::from(2 * k + 1) - want * want) / n).sqrt();
            let got = mean(&|i| one[i].powi(k));
            assert!((got - want).abs() < 5.0 * deviation, "moment {k} is {got}, not {want}");
        }
        for tenth in 0..10 {
            let low = -1.0 + 0.2 * f64::from(tenth);
            let share = mean(&|i| f64::from(u8::from((low..low + 0.2).contains(&one[i]))));
            assert!((share - 0.1).abs() < 5.0 * (0.09 / n).sqrt(), "{share} between {low} and {}", low + 0.2);
        }
        // Products of independent ones have mean zero and variance 1/9.
        let near = |of: &dyn Fn(usize) -> f64| mean(of).abs() < 5.0 / 3.0 / n.sqrt();
        assert!(near(&|i| one[i] * other[i]));
        assert!(near(&|i| one[i] * one[(i + 1) % one.len()]));
        assert!(near(&|i| one[i] * one[(i + WIDTH) % one.len()]));
    }

    #[test]
    fn each_row_needs_a_number_and_a_bound() {
        let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        for (rows, bounds) in [(&[1, 2][..], &[1.0][..]), (&[1], &[1.0, 1.0])] {
            assert!(UniformNoise { rows, bounds, key: 0 }.add_to(&x).unwrap_err().to_string().contains("noise"));
        }
    }
}
