//! Derivatives of log-probabilities with respect to hidden states, summed while the logits are computed. With `p` a row's probabilities and
//! `w` the output matrix, `d logp / d h = (1 - p_target) w_target - sum_{j != target} p_j w_j`. The sum only has to be rescaled when a
//! block of the vocabulary brings a new maximum (as in FlashAttention, Dao et al. 2022, arXiv 2205.14135). A backward pass that needs only
//! these derivatives then computes no logits.

use super::gemm::{WriteMode, matmul};
use super::math::exp;
use super::simd::wide;
use super::tiles::{LANES, LogitScale, LogitTile, TOKENS_PER_TASK};
use super::view::MatrixView;
use super::weight_storage::WeightValues;
use rayon::prelude::*;

/// For each row, the sum of the output matrix's rows for all tokens but the target, weighted by their probabilities, or by `exp(z - top)`
/// before [`MeanRows::divided`].
#[derive(Clone, Debug)]
pub(super) struct MeanRows {
    /// Sums, `[M, D]`.
    values: Vec<f32>,
    d: usize,
}

impl MeanRows {
    /// Creates empty sums for `m` rows of `d` values.
    pub(super) fn new(m: usize, d: usize) -> Self {
        Self { values: vec![0.0; m * d], d }
    }

    /// Adds a tile's tokens. Their logits are replaced with weights. `tops` are the rows' maxima before and including this tile.
    pub(super) fn add(
        &mut self,
        tile: &LogitTile,
        logits: &mut [f32],
        w: MatrixView<'_>,
        tops: (&[f32], &[f32]),
        targets: &[u32],
        scale: LogitScale,
    ) {
        let (d, line) = (self.d, tile.line());
        let own = &mut self.values[tile.rows.start * d..tile.rows.end * d];
        own.par_chunks_mut(d.max(1)).zip(tops.0.par_iter().zip(tops.1)).for_each(|(row, (before, with))| {
            // A row without a maximum has no sum yet.
            if before != with && *before != f32::NEG_INFINITY {
                let factor = (before - with).exp();
                row.iter_mut().for_each(|x| *x *= factor);
            }
        });
        // Rows whose logits are all -inf have no weight.
        let mut shifts: Vec<f32> = tops.1.iter().map(|&top| if top == f32::NEG_INFINITY { 0.0 } else { top }).collect();
        shifts.resize(line, 0.0);
        logits.par_chunks_mut(TOKENS_PER_TASK * line).for_each(|lines| {
            let shifts = shifts.as_chunks::<LANES>().0;
            wide!(for line in lines.chunks_exact_mut(line) {
                for (z, shift) in line.as_chunks_mut::<LANES>().0.iter_mut().zip(shifts) {
                    for lane in 0..LANES {
                        z[lane] = exp(z[lane] - shift[lane]);
                    }
                }
            });
        });
        tile.targets(targets).for_each(|(place, _)| logits[place] = 0.0);
        let weights = MatrixView::with_row_stride(logits, tile.tokens.len(), tile.rows.len(), line);
        matmul(own, d, WriteMode::Add, weights.t(), w, 1.0, scale.precision.on_all_threads());
    }

    /// Divides each row by its sum of weights.
    pub(super) fn divided(mut self, sums: impl IndexedParallelIterator<Item = f32>) -> Self {
        self.values.par_chunks_mut(self.d.max(1)).zip(sums).for_each(|(row, sum)| row.iter_mut().for_each(|x| *x /= sum));
        self
    }

    /// Returns the derivatives of the hidden states, `[M, D]`, given those of the loss with respect to each target's log-probability.
    pub(super) fn backward(
        &self,
        w: &WeightValues<'_>,
        targets: &[u32],
        logp: &[f32],
        d_logp: &[f32],
        scale: LogitScale,
    ) -> Vec<f32> {
        let (d, factor) = (self.d, scale.factor());
        let mut dh = vec![0f32; self.values.len()];
        let rows = dh.par_chunks_mut(d.max(1)).zip(self.values.par_chunks(d.max(1)));
        rows.zip(targets.par_iter().zip(logp).zip(d_logp)).for_each(|((dh, others), ((&target, logp), d_logp))| {
            let target = w.values(target as usize * d..(target as usize + 1) * d);
            // `1 - p` without cancellation.
            let (left, by) = (-logp.exp_m1(), factor * d_logp);
            dh.iter_mut().zip(others).zip(&*target).for_each(|((dh, others), target)| *dh = by * (left * target - others));
        });
        dh
    }
}

#[cfg(test)]
mod tests {
    use crate::Precision;
    use crate::logprob::{LogitScale, backward, forward_for_hidden};
    use candle_core::{DType, Device, Tensor};

    const TOKENS: usize = 4200;
    const ROWS: usize = 20;
    const D: usize = 48;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        let next = |state: &mut u32| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some((*state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        (0..n).scan(seed, |state, _| next(state)).collect()
    }

    fn length(values: impl Iterator<Item = f32>) -> f64 {
        values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn a_derivative_is_as_precise_in_bf16_however_likely_the_target_is() {
        let in_bf16 = |values: Vec<f32>| Tensor::from_vec(values, ((), D), &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap();
        let in_f32 = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
        let w = in_bf16(values(TOKENS * D, 1));
        let all = crate::to_vec(&in_f32(&w)).unwrap();
        let targets: Vec<u32> = (0..ROWS).map(|row| (row * 211) as u32).collect();
        let d_logp = values(ROWS, 2);
        let mut likely = [f32::INFINITY, f32::NEG_INFINITY];
        for by in [0.1, 0.3, 0.6, 1.1] {
            // Each hidden state points to its target.
            let own = |target: &u32| all[*target as usize * D..][..D].iter().map(move |x| by * x);
            let h = in_f32(&in_bf16(targets.iter().flat_map(own).collect()));
            let derivative = |precision, w: &Tensor| {
                let scale = LogitScale { precision, ..LogitScale::from(1.0) };
                let stats = forward_for_hidden(&h, w, &targets, scale, None).unwrap();
                let dh = backward(&h, w, &targets, scale, None, &stats, &d_logp, None, None).unwrap();
                (stats.logp, crate::to_vec(&dh).unwrap())
            };
            let ((logp, got), (_, want)) = (derivative(Precision::Bf16, &w), derivative(Precision::F32, &in_f32(&w)));
            for ((got, want), logp) in got.chunks(D).zip(want.chunks(D)).zip(logp) {
                let off = length(got.iter().zip(want).map(|(a, b)| a - b)) / length(want.iter().copied());
                assert!(off < 1e-2, "a target of log-probability {logp}: off by {off}");
                likely = [likely[0].min(logp), likely[1].max(logp)];
            }
        }
        assert!(likely[0] < -4.0 && likely[1] > -1e-3, "{likely:?}");
    }
}
