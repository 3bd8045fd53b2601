//! The derivatives of log-probabilities with respect to hidden states, summed while the logits are computed. With `p` a row's
//! probabilities and `w` the output matrix, `d logp / d h = (1 - p_target) w_target - sum_{j != target} p_j w_j`, and the sum only has to be
//! rescaled when a block of the vocabulary brings a new maximum (as in FlashAttention, Dao et al. 2022, arXiv 2205.14135). A backward
//! pass then computes no logits, unless it needs the derivatives of the output matrix or of entropies.

use super::gemm::{Dst, Mat, matmul};
use super::math::exp;
use super::simd::wide;
use super::stored::Stored;
use super::tiles::{LANES, Scale, Tile};
use rayon::prelude::*;

/// Each row's sum of the output matrix's rows of all tokens but the target, by their probabilities.
#[derive(Clone, Debug)]
pub(super) struct MeanRows {
    /// `[M, D]`
    values: Vec<f32>,
    d: usize,
}

impl MeanRows {
    /// Creates sums of nothing for `m` rows of `d` values.
    pub(super) fn new(m: usize, d: usize) -> Self {
        Self { values: vec![0.0; m * d], d }
    }

    /// Adds a tile's tokens, whose logits become weights. `tops` are its rows' maxima before this tile and with it.
    pub(super) fn add(
        &mut self,
        tile: &Tile,
        logits: &mut [f32],
        w: Mat<'_>,
        tops: (&[f32], &[f32]),
        targets: &[u32],
        scale: Scale,
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
        // Logits that are all -inf have no weight.
        let mut shifts: Vec<f32> = tops.1.iter().map(|&top| if top == f32::NEG_INFINITY { 0.0 } else { top }).collect();
        shifts.resize(line, 0.0);
        logits.par_chunks_mut(LINES * line).for_each(|lines| {
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
        let weights = Mat::strided(logits, tile.tokens.len(), tile.rows.len(), line);
        matmul(own, d, Dst::Add, weights.t(), w, 1.0, scale.precision.on_all_threads());
    }

    /// Divides each row by its sum of weights.
    pub(super) fn divided(mut self, sums: impl IndexedParallelIterator<Item = f32>) -> Self {
        self.values.par_chunks_mut(self.d.max(1)).zip(sums).for_each(|(row, sum)| row.iter_mut().for_each(|x| *x /= sum));
        self
    }

    /// Returns the derivatives of the hidden states, `[M, D]`, given those of the loss with respect to each target's log-probability.
    pub(super) fn backward(&self, w: &Stored<'_>, targets: &[u32], logp: &[f32], d_logp: &[f32], scale: Scale) -> Vec<f32> {
        let (d, factor) = (self.d, scale.factor());
        let mut dh = vec![0f32; self.values.len()];
        let rows = dh.par_chunks_mut(d.max(1)).zip(self.values.par_chunks(d.max(1)));
        rows.zip(targets.par_iter().zip(logp).zip(d_logp)).for_each(|((dh, others), ((&target, logp), d_logp))| {
            let target = w.values(target as usize * d..(target as usize + 1) * d);
            // 1 - p without cancellation.
            let (left, by) = (-logp.exp_m1(), factor * d_logp);
            dh.iter_mut().zip(others).zip(&*target).for_each(|((dh, others), target)| *dh = by * (left * target - others));
        });
        dh
    }
}

/// Lines of weights that one task computes.
const LINES: usize = 256;
