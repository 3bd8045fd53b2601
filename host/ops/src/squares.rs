//! Computes how concentrated the distribution over the vocabulary is at each row: the logarithm of the sum of squared probabilities. It
//! uses the same tiles as log-probabilities, so the complete logits never exist.

use super::math::exp;
use super::simd::wide;
use super::tiles::{LogitScale, LogitTile, LogitTiles};
use super::{Capability, Result, matrix_dims};
use candle_core::Tensor;

/// Returns `ln(sum_j p_j^2)` of each row, `[M]`, from `hidden: [M, D]` and `w: [V, D]`: 0 for a deterministic distribution, `-ln V` for a
/// uniform one. NaN if a logit is.
///
/// # Errors
/// If the tensors are on a device.
pub fn log_sum_squares(hidden: &Tensor, w: &Tensor, scale: LogitScale) -> Result<Vec<f32>> {
    Capability::SquaredProbabilities.require(hidden)?;
    let ((m, _), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let mut all_logits = LogitTiles::new(hidden, w, scale)?;
    let mut sums = vec![SquareSums { top: f32::NEG_INFINITY, sum: 0.0, squares: 0.0 }; m];
    for tile in LogitTile::all(m, vocab) {
        let (logits, _) = all_logits.tile_logits(&tile);
        let line = tile.line();
        let mut tops = vec![f32::NEG_INFINITY; line];
        wide!(for line in logits.chunks_exact(line) {
            for (top, &z) in tops.iter_mut().zip(line) {
                *top = if z > *top { z } else { *top };
            }
        });
        let sums = &mut sums[tile.rows.clone()];
        sums.iter_mut().zip(&mut tops).for_each(|(sums, top)| *top = sums.raise(*top));
        let (mut sum, mut squares) = (vec![0f32; line], vec![0f32; line]);
        wide!(for line in logits.chunks_exact(line) {
            for (((sum, squares), z), top) in sum.iter_mut().zip(&mut squares).zip(line).zip(&tops) {
                let e = exp(z - top);
                *sum += e;
                *squares += e * e;
            }
        });
        for ((sums, sum), squares) in sums.iter_mut().zip(sum).zip(squares) {
            sums.sum += f64::from(sum);
            sums.squares += f64::from(squares);
        }
    }
    Ok(sums.into_iter().map(|sums| (sums.squares.ln() - 2.0 * sums.sum.ln()) as f32).collect())
}

/// Sums over some of a row's logits.
#[derive(Clone, Copy)]
struct SquareSums {
    top: f32,
    /// Sum of `exp(z - top)`.
    sum: f64,
    /// Sum of the squares of `exp(z - top)`.
    squares: f64,
}

impl SquareSums {
    /// Rescales the sums to the higher of both maxima and returns it; 0 if all logits so far are -inf.
    fn raise(&mut self, top: f32) -> f32 {
        if top > self.top {
            let factor = f64::from(self.top - top).exp();
            (self.sum, self.squares, self.top) = (self.sum * factor, self.squares * factor * factor, top);
        }
        if self.top == f32::NEG_INFINITY { 0.0 } else { self.top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::TOKENS;
    use candle_core::Device;

    fn matrix(values: Vec<f32>, columns: usize) -> Tensor {
        let rows = values.len() / columns;
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    #[test]
    fn the_sum_of_squares_is_that_of_the_whole_distribution_over_several_blocks() {
        let (rows, d, vocab) = (7, 3, 2 * TOKENS + 5);
        let h: Vec<f32> = (0..rows * d).map(|i| (i as f32 * 1.7).sin() * 2.0).collect();
        let w: Vec<f32> = (0..vocab * d).map(|i| (i as f32 * 0.37).cos() * 3.0).collect();
        for scale in [LogitScale::from(1.0), LogitScale::from(0.6), LogitScale { cap: Some(2.0), ..LogitScale::from(1.5) }] {
            let got = log_sum_squares(&matrix(h.clone(), d), &matrix(w.clone(), d), scale).unwrap();
            for (row, got) in got.iter().enumerate() {
                let logits: Vec<f64> = (0..vocab)
                    .map(|token| {
                        let z: f64 = (0..d).map(|i| f64::from(h[row * d + i]) * f64::from(w[token * d + i])).sum();
                        let bounded = scale.cap.map_or(z, |cap| f64::from(cap) * (z / f64::from(cap)).tanh());
                        bounded / f64::from(scale.temperature)
                    })
                    .collect();
                let sum: f64 = logits.iter().map(|z| z.exp()).sum();
                let want = logits.iter().map(|z| (z.exp() / sum).powi(2)).sum::<f64>().ln();
                assert!((f64::from(*got) - want).abs() < 2e-5, "row {row}, {scale:?}: {got} instead of {want}");
            }
        }
    }

    #[test]
    fn certainty_is_0_and_evenness_the_size_of_the_vocabulary() {
        let vocab = TOKENS + 1;
        let of = |w: Vec<f32>| log_sum_squares(&matrix(vec![1.0], 1), &matrix(w, 1), 1.0.into()).unwrap()[0];
        assert!((of(vec![0.5; vocab]) + (vocab as f32).ln()).abs() < 1e-5);
        let mut one = vec![f32::NEG_INFINITY; vocab];
        one[vocab - 1] = 3.0;
        assert_eq!(of(one.clone()), 0.0);
        one[4] = f32::NAN;
        assert!(of(one).is_nan());
    }
}
