//! Computes log-probabilities and entropies of given tokens directly from hidden states and the output matrix, in blocks of rows,
//! so that the complete `[M, V]` logits never exist. The backward pass recomputes each block's logits.

use super::cpu::{read, tensor, write};
#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm::{Dst, Mat, all_threads, matmul};
use super::math::{exp, max, sum_by};
use super::simd::wide;
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use rayon::prelude::*;

/// The forward pass's results for each of the `M` rows.
#[derive(Clone, Debug, Default)]
pub struct TokenStats {
    /// Log-probability of the target token, natural logarithm.
    pub logp: Vec<f32>,
    /// Entropy of the complete distribution, in nats.
    pub entropy: Vec<f32>,
    /// Whether no token was more likely than the target.
    pub top: Vec<bool>,
    /// Logarithm of the normaliser.
    pub(super) log_sum: Vec<f32>,
}

fn rows_per_block(rows: usize, vocab: usize) -> usize {
    ((1 << 22) / vocab.max(1)).clamp(16, 512).min(rows.max(1))
}

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

/// Computes statistics from `hidden: [M, D]`, `w: [V, D]` and target ids `[M]`. Logits are divided by `temperature`.
pub fn forward(hidden: &Tensor, w: &Tensor, targets: &[u32], temperature: f32) -> Result<TokenStats> {
    let (m, d, vocab) = check(hidden, w, targets)?;
    on_device!(hidden, cuda::logprob::forward(hidden, w, targets, temperature));
    let (hs, ws) = (read(hidden)?, read(w)?);
    let block = rows_per_block(m, vocab);
    let mut logits = vec![0f32; block * vocab];
    let mut stats = TokenStats::default();
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        let h = Mat::new(&hs[first * d..], rows, d);
        let logits = &mut logits[..rows * vocab];
        matmul(logits, vocab, Dst::Replace, h, Mat::new(&ws, vocab, d).t(), 1.0 / temperature, all_threads());
        let rows: Vec<(f32, f32, bool, f32)> = logits
            .par_chunks(vocab)
            .zip(&targets[first..first + rows])
            .map(|(row, &target)| wide!(row_stats(row, target)))
            .collect();
        for (logp, entropy, top, log_sum) in rows {
            stats.logp.push(logp);
            stats.entropy.push(entropy);
            stats.top.push(top);
            stats.log_sum.push(log_sum);
        }
    }
    Ok(stats)
}

#[inline(always)]
fn row_stats(logits: &[f32], target: u32) -> (f32, f32, bool, f32) {
    let top = max(logits);
    let sum = sum_by(logits, |z| exp(z - top));
    // The shifted logit times its weight; a weight of zero counts as zero even for -inf.
    let weighted = sum_by(logits, |z| {
        let e = exp(z - top);
        if e > 0.0 { e * (z - top) } else { 0.0 }
    });
    let ln_sum = sum.ln();
    let logit = logits[target as usize];
    (logit - top - ln_sum, ln_sum - weighted / sum, logit == top, top + ln_sum)
}

/// Returns the gradient of `hidden`, `[M, D]`, and adds that of `w` to the f32 `dw`, if given. `d_logp` and `d_entropy` are the
/// loss's derivatives, one per row.
#[expect(clippy::too_many_arguments, reason = "one call site; the forward's inputs, its outputs and their gradients")]
pub fn backward(
    hidden: &Tensor,
    w: &Tensor,
    targets: &[u32],
    temperature: f32,
    stats: &TokenStats,
    d_logp: &[f32],
    d_entropy: Option<&[f32]>,
    dw: Option<&Tensor>,
) -> Result<Tensor> {
    let (m, d, vocab) = check(hidden, w, targets)?;
    if d_logp.len() != m
        || d_entropy.is_some_and(|e| e.len() != m)
        || stats.logp.len() != m
        || dw.is_some_and(|dw| dw.shape() != w.shape())
    {
        return Err(Error::Shape { op: "logprob backward", detail: format!("{} derivatives for {m} rows", d_logp.len()) });
    }
    on_device!(hidden, cuda::logprob::backward(hidden, w, targets, temperature, stats, d_logp, d_entropy, dw));
    let (hs, ws) = (read(hidden)?, read(w)?);
    let block = rows_per_block(m, vocab);
    let mut logits = vec![0f32; block * vocab];
    let mut dh = vec![0f32; m * d];
    let mut rows_backward = |mut dw: Option<&mut [f32]>| {
        for first in (0..m).step_by(block) {
            let rows = block.min(m - first);
            let h = Mat::new(&hs[first * d..], rows, d);
            let logits = &mut logits[..rows * vocab];
            matmul(logits, vocab, Dst::Replace, h, Mat::new(&ws, vocab, d).t(), 1.0 / temperature, all_threads());
            logits.par_chunks_mut(vocab).enumerate().for_each(|(r, row)| {
                let i = first + r;
                let d_entropy = d_entropy.map_or(0.0, |e| e[i]);
                wide!(logit_gradient(row, targets[i], stats.log_sum[i], stats.entropy[i], d_logp[i], d_entropy));
            });
            let d_logits = Mat::new(logits, rows, vocab);
            matmul(&mut dh[first * d..], d, Dst::Replace, d_logits, Mat::new(&ws, vocab, d), 1.0 / temperature, all_threads());
            if let Some(dw) = &mut dw {
                matmul(dw, d, Dst::Add, d_logits.t(), h, 1.0 / temperature, all_threads());
            }
        }
    };
    match dw {
        Some(dw) => write(dw, |dw| rows_backward(Some(dw)))?,
        None => rows_backward(None),
    }
    tensor(dh, (m, d))
}

/// Replaces a row of logits by the loss's derivatives with respect to them: `d_logp (1[j = target] - p_j) - d_entropy p_j (ln p_j
/// + H)`.
#[inline(always)]
fn logit_gradient(row: &mut [f32], target: u32, log_sum: f32, entropy: f32, d_logp: f32, d_entropy: f32) {
    if d_entropy == 0.0 {
        for z in row.iter_mut() {
            *z = -d_logp * exp(*z - log_sum);
        }
    } else {
        for z in row.iter_mut() {
            let ln_p = *z - log_sum;
            let p = exp(ln_p);
            *z = if p > 0.0 { -p * (d_logp + d_entropy * (ln_p + entropy)) } else { 0.0 };
        }
    }
    row[target as usize] += d_logp;
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

/// Replaces logits by probabilities up to a common factor, so that the largest is 1.
pub fn weigh(logits: &mut [f32]) {
    wide!({
        let top = max(logits);
        for z in logits {
            *z = exp(*z - top);
        }
    });
}

/// Returns each row's mean raw logit over the vocabulary, `[M]`: the hidden state times the mean row of the output matrix.
pub fn mean_logits(hidden: &Tensor, w: &Tensor) -> Result<Vec<f32>> {
    let ((_, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    on_device!(hidden, cuda::logprob::mean_logits(hidden, w));
    let (hs, ws) = (read(hidden)?, read(w)?);
    let mut sums = vec![0f64; d];
    wide!(for row in ws.chunks_exact(d) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += f64::from(*x);
        }
    });
    let dot = |row: &[f32]| row.iter().zip(&sums).map(|(x, sum)| f64::from(*x) * sum).sum::<f64>();
    Ok(hs.chunks_exact(d).map(|row| (dot(row) / vocab as f64) as f32).collect())
}
