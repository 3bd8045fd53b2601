//! Log-probabilities and entropies of given tokens, computed directly from hidden states and the output matrix in tiles of rows and
//! vocabulary (`tiles.rs`), so that the complete `[M, V]` logits never exist. The backward pass recomputes each tile's logits, unless the
//! forward pass has already summed what it needs (`mean_rows.rs`).

#[cfg(feature = "cuda")]
use super::cuda;
use super::math::{exp, max, sum_by};
use super::mean_rows::MeanRows;
use super::simd::wide;
use super::slices::{read, tensor, write};
use super::support::Restriction;
use super::tiles::{LANES, LogitGradients, LogitTile, LogitTiles, TOKENS, TOKENS_PER_TASK};
use super::view::MatrixView;
use super::weight_storage::WeightValues;
use super::{Capability, Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use rayon::prelude::*;

pub use super::tiles::LogitScale;
pub use super::token_stats::TokenStats;

fn check(hidden: &Tensor, w: &Tensor, targets: &[u32]) -> Result<(usize, usize, usize)> {
    let ((m, d), (vocab, w_d)) = (matrix_dims(hidden), matrix_dims(w));
    if d != w_d || m != targets.len() {
        let detail = format!("hidden {:?}, output matrix {:?}, {} targets", hidden.shape(), w.shape(), targets.len());
        return Err(Error::Shape { op: "logprob", detail });
    }
    if let Some(&bad) = targets.iter().find(|&&t| t as usize >= vocab) {
        return Err(Error::Shape { op: "logprob", detail: format!("target id {bad} in a vocabulary of {vocab}") });
    }
    Ok((m, d, vocab))
}

/// Computes statistics from `hidden: [M, D]`, `w: [V, D]` and target ids `[M]`, among the tokens that a `restriction` leaves each row.
pub fn forward(
    hidden: &Tensor,
    w: &Tensor,
    targets: &[u32],
    scale: LogitScale,
    restriction: Option<&Restriction>,
) -> Result<TokenStats> {
    statistics(hidden, w, targets, scale, restriction, false)
}

/// Computes the statistics of [`forward`]. On the CPU, if logits are neither capped nor restricted, also computes the sums that let a
/// [`backward`] for hidden states and log-probabilities only avoid computing logits. That takes half as long again; any other backward pass
/// takes as long as after [`forward`].
pub fn forward_for_hidden(
    hidden: &Tensor,
    w: &Tensor,
    targets: &[u32],
    scale: LogitScale,
    restriction: Option<&Restriction>,
) -> Result<TokenStats> {
    statistics(hidden, w, targets, scale, restriction, true)
}

fn statistics(
    hidden: &Tensor,
    w: &Tensor,
    targets: &[u32],
    scale: LogitScale,
    restriction: Option<&Restriction>,
    for_hidden: bool,
) -> Result<TokenStats> {
    let (m, d, vocab) = check(hidden, w, targets)?;
    on_device!(hidden, cuda::logprob::forward(hidden, w, targets, scale, restriction));
    let mut all_logits = LogitTiles::new(hidden, w, scale)?;
    let mut mean_rows = (for_hidden && scale.cap.is_none() && restriction.is_none()).then(|| MeanRows::new(m, d));
    let mut sums = vec![SoftmaxSums::NONE; m];
    let mut target_logits = vec![f32::NAN; m];
    let tops = |sums: &[SoftmaxSums]| sums.iter().map(|sums| sums.top).collect::<Vec<_>>();
    for tile in LogitTile::all(m, vocab) {
        let (logits, w) = all_logits.tile_logits(&tile);
        tile.restrict(logits, restriction, vocab);
        let of_tile = &mut sums[tile.rows.clone()];
        let before = tops(of_tile);
        let tasks = logits.par_chunks(TOKENS_PER_TASK * tile.line());
        for part in tasks.map(|lines| sums_of(lines, tile.line())).collect::<Vec<_>>() {
            of_tile.iter_mut().zip(part).for_each(|(sums, part)| *sums = sums.merge(part));
        }
        tile.targets(targets).for_each(|(place, row)| target_logits[row] = logits[place]);
        if let Some(mean_rows) = &mut mean_rows {
            mean_rows.add(&tile, logits, w, (&before, &tops(of_tile)), targets, scale);
        }
    }
    let mean_rows = mean_rows.map(|rows| rows.divided(sums.par_iter().map(|sums| sums.sum)));
    let mut stats = TokenStats { mean_rows, ..TokenStats::default() };
    for (SoftmaxSums { top, sum, weighted }, logit) in sums.into_iter().zip(target_logits) {
        let ln_sum = sum.ln();
        stats.logp.push(logit - top - ln_sum);
        stats.entropy.push(ln_sum - weighted / sum);
        stats.top.push(logit == top);
        stats.log_sum.push(top + ln_sum);
    }
    Ok(stats)
}

/// The sums that a softmax needs over some of a row's logits.
#[derive(Clone, Copy)]
struct SoftmaxSums {
    top: f32,
    /// Sum of `exp(z - top)`.
    sum: f32,
    /// Sum of `exp(z - top) (z - top)`.
    weighted: f32,
}

impl SoftmaxSums {
    const NONE: Self = Self { top: f32::NEG_INFINITY, sum: 0.0, weighted: 0.0 };

    /// Returns the sums over the logits of both. A NaN in either is propagated.
    fn merge(self, other: Self) -> Self {
        let top = if other.top > self.top { other.top } else { self.top };
        let (a, b) = (self.below(top), other.below(top));
        Self { top, sum: a.sum + b.sum, weighted: a.weighted + b.weighted }
    }

    /// Returns the sums relative to a higher maximum.
    fn below(self, top: f32) -> Self {
        // Without a logit above -inf, the sums are zero or NaN, whatever they are relative to.
        if self.top == top || self.top == f32::NEG_INFINITY {
            return Self { top, ..self };
        }
        let shift = self.top - top;
        let factor = shift.exp();
        // A weight of zero counts as zero even for -inf.
        let weighted = if factor == 0.0 { 0.0 } else { factor * (self.weighted + shift * self.sum) };
        Self { top, sum: factor * self.sum, weighted }
    }
}

/// Computes each row's sums over some lines of a tile.
fn sums_of(lines: &[f32], line: usize) -> Vec<SoftmaxSums> {
    let mut tops = vec![f32::NEG_INFINITY; line];
    wide!(for line in lines.chunks_exact(line) {
        for (top, &z) in tops.iter_mut().zip(line) {
            *top = if z > *top { z } else { *top };
        }
    });
    // If a row's logits in these lines are all -inf, they have no weight compared with those in other lines.
    let shifts: Vec<f32> = tops.iter().map(|&top| if top == f32::NEG_INFINITY { 0.0 } else { top }).collect();
    let (mut sums, mut weighted) = (vec![0f32; line], vec![0f32; line]);
    wide!(for line in lines.chunks_exact(line) {
        let sums = sums.as_chunks_mut::<LANES>().0.iter_mut().zip(weighted.as_chunks_mut::<LANES>().0);
        let logits = line.as_chunks::<LANES>().0.iter().zip(shifts.as_chunks::<LANES>().0);
        for ((sum, weighted), (z, shift)) in sums.zip(logits) {
            for lane in 0..LANES {
                let below = z[lane] - shift[lane];
                let e = exp(below);
                sum[lane] += e;
                // A weight of zero counts as zero even for -inf.
                weighted[lane] += if e > 0.0 { e * below } else { 0.0 };
            }
        }
    });
    let sums = sums.into_iter().zip(weighted);
    tops.into_iter().zip(sums).map(|(top, (sum, weighted))| SoftmaxSums { top, sum, weighted }).collect()
}

/// Replaces each log-probability with that of a smoothed target, in which `share` is spread evenly over the vocabulary (label smoothing,
/// Szegedy et al. 2016, arXiv 1512.00567): `1 - share` of the token's own, plus `share` of the vocabulary's mean. [`backward`] then takes
/// derivatives with respect to the smoothed values.
///
/// # Errors
/// If the tensors are on a device, or the sizes don't fit.
pub fn smooth(stats: &mut TokenStats, share: f64, hidden: &Tensor, w: &Tensor, scale: LogitScale) -> Result<()> {
    let (rows, _) = matrix_dims(hidden);
    Capability::SmoothedTargets.require(hidden)?;
    if rows != stats.logp.len() {
        let detail = format!("smoothed targets of {rows} rows and {} statistics", stats.logp.len());
        return Err(Error::Shape { op: "logprob", detail });
    }
    let means = mean_logits(hidden, w, scale)?;
    for ((logp, log_sum), mean) in stats.logp.iter_mut().zip(&stats.log_sum).zip(means) {
        let mean = f64::from(mean) / f64::from(scale.temperature) - f64::from(*log_sum);
        *logp = ((1.0 - share) * f64::from(*logp) + share * mean) as f32;
    }
    stats.smoothing = share as f32;
    Ok(())
}

/// Returns the gradient of `hidden`, `[M, D]`, and adds that of `w` to the f32 `dw`, if given. `d_logp` and `d_entropy` are the loss's
/// derivatives, one per row.
#[expect(clippy::too_many_arguments, reason = "one call site; the forward's inputs, its outputs and their gradients")]
pub fn backward(
    hidden: &Tensor,
    w: &Tensor,
    targets: &[u32],
    scale: LogitScale,
    restriction: Option<&Restriction>,
    stats: &TokenStats,
    d_logp: &[f32],
    d_entropy: Option<&[f32]>,
    dw: Option<&Tensor>,
) -> Result<Tensor> {
    let (m, d, vocab) = check(hidden, w, targets)?;
    let share = stats.smoothing;
    if share > 0.0 && restriction.is_some() {
        let detail = "targets can't be spread over a restricted vocabulary".into();
        return Err(Error::Shape { op: "logprob backward", detail });
    }
    if d_logp.len() != m
        || d_entropy.is_some_and(|e| e.len() != m)
        || stats.logp.len() != m
        || dw.is_some_and(|dw| dw.shape() != w.shape())
    {
        return Err(Error::Shape { op: "logprob backward", detail: format!("{} derivatives for {m} rows", d_logp.len()) });
    }
    on_device!(hidden, cuda::logprob::backward(hidden, w, targets, scale, restriction, stats, d_logp, d_entropy, dw));
    if let (Some(rows), None, None, None, 0.0) = (&stats.mean_rows, d_entropy, dw, restriction, share) {
        return tensor(rows.backward(&WeightValues::open(w.into())?, targets, &stats.logp, d_logp, scale), (m, d));
    }
    let (hs, mut all_logits) = (read(hidden)?, LogitTiles::new(hidden, w, scale)?);
    let mut dh = vec![0f32; m * d];
    let mut tiles_backward = |dw: Option<&mut [f32]>| {
        let mut gradients = LogitGradients { hidden: MatrixView::new(&hs, m, d), d_hidden: &mut dh, d_output: dw, scale };
        for tile in LogitTile::all(m, vocab) {
            let (logits, w) = all_logits.tile_logits(&tile);
            let slopes = scale.slopes(logits);
            let multiplied = tile.restrict(logits, restriction, vocab);
            let rows = LogprobRows::new(&tile, stats, d_logp, d_entropy);
            logits.par_chunks_mut(TOKENS_PER_TASK * tile.line()).for_each(|lines| rows.logit_gradients(lines));
            if share > 0.0 {
                rows.spread(logits, share / vocab as f32);
            }
            tile.targets(targets).for_each(|(place, row)| logits[place] += (1.0 - share) * d_logp[row]);
            multiplied.into_iter().for_each(|(place, factor)| logits[place] *= factor);
            gradients.add(&tile, logits, slopes, w);
        }
    };
    match dw {
        Some(dw) => write(dw, |dw| tiles_backward(Some(dw)))?,
        None => tiles_backward(None),
    }
    tensor(dh, (m, d))
}

/// The values that the derivatives of a tile's logits need, one per row and padded like its lines.
struct LogprobRows {
    log_sum: Vec<f32>,
    entropy: Vec<f32>,
    d_logp: Vec<f32>,
    d_entropy: Option<Vec<f32>>,
}

impl LogprobRows {
    fn new(tile: &LogitTile, stats: &TokenStats, d_logp: &[f32], d_entropy: Option<&[f32]>) -> Self {
        let padded = |values: &[f32]| {
            let mut values = values[tile.rows.clone()].to_vec();
            values.resize(tile.line(), 0.0);
            values
        };
        Self {
            log_sum: padded(&stats.log_sum),
            entropy: padded(&stats.entropy),
            d_logp: padded(d_logp),
            d_entropy: d_entropy.map(padded),
        }
    }

    /// Adds `by` times each row's derivative to every token's.
    fn spread(&self, lines: &mut [f32], by: f32) {
        lines.par_chunks_mut(self.d_logp.len()).for_each(|line| {
            line.iter_mut().zip(&self.d_logp).for_each(|(d, d_logp)| *d += by * d_logp);
        });
    }

    /// Replaces some lines of logits with the loss's derivatives with respect to them, `d_logp (1[j = target] - p_j) - d_entropy p_j (ln
    /// p_j + H)`, excluding the target's own term.
    fn logit_gradients(&self, lines: &mut [f32]) {
        let (log_sum, d_logp) = (self.log_sum.as_chunks::<LANES>().0, self.d_logp.as_chunks::<LANES>().0);
        let entropy = self.entropy.as_chunks::<LANES>().0;
        let lines = lines.chunks_exact_mut(self.log_sum.len());
        let Some(d_entropy) = &self.d_entropy else {
            wide!(for line in lines {
                for ((z, log_sum), d_logp) in line.as_chunks_mut::<LANES>().0.iter_mut().zip(log_sum).zip(d_logp) {
                    for lane in 0..LANES {
                        z[lane] = -d_logp[lane] * exp(z[lane] - log_sum[lane]);
                    }
                }
            });
            return;
        };
        let d_entropy = d_entropy.as_chunks::<LANES>().0;
        wide!(for line in lines {
            let (lanes, entropies) = (line.as_chunks_mut::<LANES>().0.iter_mut(), entropy.iter().zip(d_entropy));
            for (((z, log_sum), d_logp), (entropy, d_entropy)) in lanes.zip(log_sum).zip(d_logp).zip(entropies) {
                for lane in 0..LANES {
                    let ln_p = z[lane] - log_sum[lane];
                    let p = exp(ln_p);
                    let d = -p * (d_logp[lane] + d_entropy[lane] * (ln_p + entropy[lane]));
                    z[lane] = if p > 0.0 { d } else { 0.0 };
                }
            }
        });
    }
}

/// Returns the natural logarithm of the sum of `exp(logits / temperature)`.
pub fn log_sum_exp(logits: &[f32], temperature: f32) -> f32 {
    let scale = 1.0 / temperature;
    let (top, sum) = wide!({
        let top = max(logits) * scale;
        (top, sum_by(logits, |z| exp(z * scale - top)))
    });
    top + sum.ln()
}

/// Replaces logits with probabilities up to a common factor, so that the largest is 1.
pub fn weigh(logits: &mut [f32]) {
    wide!({
        let top = max(logits);
        for z in logits {
            *z = exp(*z - top);
        }
    });
}

/// Returns each row's mean logit over the vocabulary at temperature one, `[M]`. Without soft-capping, this is the hidden state times the
/// mean row of the output matrix.
pub fn mean_logits(hidden: &Tensor, w: &Tensor, scale: LogitScale) -> Result<Vec<f32>> {
    let ((_, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let scale = LogitScale { temperature: 1.0, ..scale };
    if scale.cap.is_some() {
        on_device!(hidden, cuda::logprob::mean_of_logits(hidden, w, scale));
        return mean_of_tiles(hidden, w, scale);
    }
    on_device!(hidden, {
        let means = cuda::logprob::mean_logits(hidden, w)?;
        Ok(means.into_iter().map(|mean| mean * scale.factor()).collect())
    });
    let (hs, ws) = (read(hidden)?, WeightValues::open(w.into())?);
    let block_sums = |first: usize| {
        let mut sums = vec![0f64; d];
        // Reads a few rows at a time, so that they are in a cache when they are added.
        for row in (first..vocab.min(first + TOKENS)).step_by(LANES) {
            let rows = ws.values(row * d..vocab.min(first + TOKENS).min(row + LANES) * d);
            wide!(for row in rows.chunks_exact(d) {
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += f64::from(*x);
                }
            });
        }
        sums
    };
    let mut sums = vec![0f64; d];
    let blocks = (0..vocab.div_ceil(TOKENS)).into_par_iter().map(|i| block_sums(i * TOKENS));
    for block in blocks.collect::<Vec<_>>() {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
    }
    let dot = |row: &[f32]| row.iter().zip(&sums).map(|(x, sum)| f64::from(*x) * sum).sum::<f64>();
    let factor = f64::from(scale.factor());
    Ok(hs.chunks_exact(d).map(|row| (dot(row) / vocab as f64 * factor) as f32).collect())
}

fn mean_of_tiles(hidden: &Tensor, w: &Tensor, scale: LogitScale) -> Result<Vec<f32>> {
    let ((m, _), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let mut logits = LogitTiles::new(hidden, w, scale)?;
    let mut sums = vec![0f64; m];
    for tile in LogitTile::all(m, vocab) {
        for line in logits.tile_logits(&tile).0.chunks_exact(tile.line()) {
            sums[tile.rows.clone()].iter_mut().zip(line).for_each(|(sum, z)| *sum += f64::from(*z));
        }
    }
    Ok(sums.into_iter().map(|sum| (sum / vocab as f64) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Precision;
    use crate::tiles::ROWS;
    use candle_core::Device;

    const D: usize = 5;
    const SCALES: [LogitScale; 2] = [
        LogitScale { temperature: 0.7, divisor: 1.0, cap: None, precision: Precision::F32 },
        LogitScale { temperature: 0.7, divisor: 1.5, cap: Some(2.5), precision: Precision::F32 },
    ];

    fn values(n: usize, seed: u32, scale: f32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scale * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    fn matrix(values: Vec<f32>, cols: usize) -> Tensor {
        let rows = values.len() / cols;
        Tensor::from_vec(values, (rows, cols), &Device::Cpu).unwrap()
    }

    fn close(what: &str, got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len(), "{what}");
        let largest = want.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 1e-5 * largest, "{what}, value {i}: {got} instead of {want}");
        }
    }

    /// Results of the whole computation in f64, row by row.
    #[derive(Default)]
    struct NaiveLogprob {
        logp: Vec<f64>,
        entropy: Vec<f64>,
        top: Vec<bool>,
        dh: Vec<f64>,
        dw: Vec<f64>,
    }

    impl NaiveLogprob {
        fn new(h: &[f32], w: &[f32], targets: &[u32], d_logp: &[f32], d_entropy: Option<&[f32]>, scale: LogitScale) -> Self {
            let mut naive = Self { dw: vec![0.0; w.len()], ..Self::default() };
            let (heat, divisor) = (f64::from(scale.temperature), f64::from(scale.divisor));
            let bound = |z: f64| scale.cap.map_or(z, |cap| f64::from(cap) * (z / f64::from(cap)).tanh());
            let slope = |z: f64| scale.cap.map_or(1.0, |cap| 1.0 - (z * heat / f64::from(cap)).powi(2));
            for (row, (h, &target)) in h.chunks(D).zip(targets).enumerate() {
                let product = |w: &[f32]| h.iter().zip(w).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
                let z: Vec<f64> = w.chunks(D).map(|w| bound(product(w) / divisor) / heat).collect();
                let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let ln_sum = top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
                let entropy = -z.iter().map(|z| (z - ln_sum).exp() * (z - ln_sum)).sum::<f64>();
                naive.logp.push(z[target as usize] - ln_sum);
                naive.entropy.push(entropy);
                naive.top.push(z[target as usize] == top);
                let (by_logp, by_entropy) = (f64::from(d_logp[row]), d_entropy.map_or(0.0, |d| f64::from(d[row])));
                let mut dh = [0.0; D];
                for (j, z) in z.iter().enumerate() {
                    let p = (z - ln_sum).exp();
                    let chosen = if j == target as usize { by_logp } else { 0.0 };
                    let dz = (chosen - by_logp * p - by_entropy * p * (z - ln_sum + entropy)) * slope(*z) / (heat * divisor);
                    for k in 0..D {
                        dh[k] += dz * f64::from(w[j * D + k]);
                        naive.dw[j * D + k] += dz * f64::from(h[k]);
                    }
                }
                naive.dh.extend(dh);
            }
            naive
        }
    }

    #[test]
    fn tiles_agree_with_whole_rows_in_double_precision() {
        // Less than a register of rows and less than a task's tokens, several blocks, several panels of rows, and both.
        let sizes = [(1, 3), (7, 300), (6, 2 * TOKENS + 9), (ROWS + 3, 70), (ROWS + 17, TOKENS + 1)];
        for ((m, vocab), scale) in sizes.into_iter().flat_map(|size| SCALES.map(|scale| (size, scale))) {
            let (h, w) = (values(m * D, 1, 2.0), values(vocab * D, 2, 2.0));
            let edges = [0, TOKENS_PER_TASK - 1, TOKENS_PER_TASK, TOKENS - 1, TOKENS, 2 * TOKENS, vocab - 1];
            let targets: Vec<u32> = (0..m).map(|row| (edges[row % edges.len()] % vocab) as u32).collect();
            let (d_logp, d_entropy) = (values(m, 3, 1.0), values(m, 4, 1.0));
            let (ht, wt) = (matrix(h.clone(), D), matrix(w.clone(), D));
            let stats = forward(&ht, &wt, &targets, scale, None).unwrap();
            for d_entropy in [None, Some(&d_entropy[..])] {
                let case = format!("{m} rows, {vocab} tokens, {scale:?}, entropy {}", d_entropy.is_some());
                let want = NaiveLogprob::new(&h, &w, &targets, &d_logp, d_entropy, scale);
                close(&format!("logp, {case}"), &stats.logp, &want.logp);
                close(&format!("entropy, {case}"), &stats.entropy, &want.entropy);
                assert_eq!(stats.top, want.top, "{case}");
                // Gradients are added to the existing values.
                let dw = matrix(vec![1.0; vocab * D], D);
                let back = |dw| backward(&ht, &wt, &targets, scale, None, &stats, &d_logp, d_entropy, dw).unwrap();
                let (dh, frozen) = (super::super::to_vec(&back(Some(&dw))).unwrap(), super::super::to_vec(&back(None)).unwrap());
                close(&format!("dh, {case}"), &dh, &want.dh);
                let added: Vec<f64> = want.dw.iter().map(|x| x + 1.0).collect();
                close(&format!("dw, {case}"), &super::super::to_vec(&dw).unwrap(), &added);
                assert_eq!(dh, frozen, "{case}");
                // The forward pass may have done the work for this gradient.
                let early = forward_for_hidden(&ht, &wt, &targets, scale, None).unwrap();
                assert_eq!((&early.logp, &early.entropy, &early.top), (&stats.logp, &stats.entropy, &stats.top), "{case}");
                let dh = backward(&ht, &wt, &targets, scale, None, &early, &d_logp, d_entropy, None).unwrap();
                close(&format!("early dh, {case}"), &super::super::to_vec(&dh).unwrap(), &want.dh);
            }
        }
    }

    #[test]
    fn an_output_matrix_in_bf16_or_f16_gives_the_bits_of_its_values_in_f32() {
        use candle_core::DType;
        let (m, vocab) = (ROWS + 3, TOKENS + 9);
        let (h, w) = (matrix(values(m * D, 1, 2.0), D), matrix(values(vocab * D, 2, 2.0), D));
        let targets: Vec<u32> = (0..m).map(|row| (row * 11 % vocab) as u32).collect();
        let (d_logp, d_entropy) = (values(m, 3, 1.0), values(m, 4, 1.0));
        let run = |w: &Tensor, scale: LogitScale| {
            let stats = forward(&h, w, &targets, scale, None).unwrap();
            let dh = backward(&h, w, &targets, scale, None, &stats, &d_logp, Some(&d_entropy), None).unwrap();
            (stats.logp, stats.entropy, super::super::to_vec(&dh).unwrap(), mean_logits(&h, w, scale).unwrap())
        };
        for (dtype, scale) in [DType::BF16, DType::F16].into_iter().flat_map(|dtype| SCALES.map(|scale| (dtype, scale))) {
            let half = w.to_dtype(dtype).unwrap();
            assert!(run(&half, scale) == run(&half.to_dtype(DType::F32).unwrap(), scale), "{dtype:?}, {scale:?}");
        }
    }

    #[test]
    fn blocks_of_impossible_tokens_have_no_weight_and_nan_is_seen_anywhere() {
        let vocab = 2 * TOKENS + 3;
        let hidden = matrix(vec![1.0], 1);
        let run = |w: Vec<f32>, target: usize| forward(&hidden, &matrix(w, 1), &[target as u32], 1.0.into(), None).unwrap();
        for possible in [0, TOKENS + 1, vocab - 1] {
            let mut w = vec![f32::NEG_INFINITY; vocab];
            w[possible] = 3.0;
            w[(possible + TOKENS) % vocab] = 3.0;
            let stats = run(w.clone(), possible);
            let half = std::f32::consts::LN_2;
            assert!((stats.logp[0] + half).abs() < 1e-6 && (stats.entropy[0] - half).abs() < 1e-6, "{stats:?}");
            assert!(stats.top[0]);
            assert_eq!(run(w.clone(), (possible + 1) % vocab).logp[0], f32::NEG_INFINITY);
            w[(possible + 1) % vocab] = f32::NAN;
            assert!(run(w, possible).logp[0].is_nan());
        }
        assert!(run(vec![f32::NEG_INFINITY; vocab], 5).logp[0].is_nan());
        assert!(run(vec![f32::NAN; vocab], 5).logp[0].is_nan());
    }

    #[test]
    fn mean_logits_are_those_of_all_tokens() {
        let vocab = TOKENS + 11;
        let (h, w) = (values(3 * D, 5, 1.0), values(vocab * D, 6, 1.0));
        let product = |h: &[f32], w: &[f32]| h.iter().zip(w).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        let mean = |h: &[f32]| w.chunks(D).map(|w| product(h, w)).sum::<f64>() / vocab as f64;
        let want: Vec<f64> = h.chunks(D).map(mean).collect();
        // The cap is so loose that it changes nothing, so both ways give the same.
        let bounded = LogitScale { cap: Some(1e5), ..LogitScale::from(5.0) };
        close("bounded", &mean_logits(&matrix(h.clone(), D), &matrix(w.clone(), D), bounded).unwrap(), &want);
        close("mean logits", &mean_logits(&matrix(h, D), &matrix(w.clone(), D), 5.0.into()).unwrap(), &want);
    }

    #[test]
    fn a_smoothed_target_is_the_mean_of_all_targets_by_their_weights() {
        let (m, vocab, share) = (7, TOKENS + 11, 0.3);
        let (h, w, d_logp) = (values(m * D, 1, 2.0), values(vocab * D, 2, 2.0), values(m, 3, 1.0));
        let targets: Vec<u32> = (0..m).map(|row| (row * 37) as u32).collect();
        let (ht, wt) = (matrix(h.clone(), D), matrix(w.clone(), D));
        for scale in SCALES {
            let naive = |targets: &[u32]| NaiveLogprob::new(&h, &w, targets, &d_logp, None, scale);
            // Log-probabilities and gradients are linear in the targets.
            let (mut want, own) = (NaiveLogprob::default(), naive(&targets));
            let add = |to: &mut Vec<f64>, by: f64, from: &[f64]| {
                to.resize(from.len(), 0.0);
                to.iter_mut().zip(from).for_each(|(to, from)| *to += by * from);
            };
            let all = (0..vocab).map(|token| (share / vocab as f64, naive(&vec![token as u32; m])));
            for (by, part) in std::iter::once((1.0 - share, own)).chain(all) {
                add(&mut want.logp, by, &part.logp);
                add(&mut want.dh, by, &part.dh);
                add(&mut want.dw, by, &part.dw);
            }
            let mut stats = forward(&ht, &wt, &targets, scale, None).unwrap();
            let entropy = stats.entropy.clone();
            smooth(&mut stats, share, &ht, &wt, scale).unwrap();
            close("logp", &stats.logp, &want.logp);
            assert_eq!(stats.entropy, entropy);
            let dw = matrix(vec![0.0; vocab * D], D);
            let dh = backward(&ht, &wt, &targets, scale, None, &stats, &d_logp, None, Some(&dw)).unwrap();
            close("dh", &super::super::to_vec(&dh).unwrap(), &want.dh);
            close("dw", &super::super::to_vec(&dw).unwrap(), &want.dw);
        }
    }
}
