//! Selects tokens and completions that are excluded from the policy's loss but kept in the KL term.

use rlhost_plugin_sdk::rows::masked_mean;
use std::ops::Range;

/// Returns the tokens whose entropy is at least this quantile of all counted tokens' ("Beyond the 80/20 rule", arXiv 2506.01939). As in
/// TRL, the quantile is computed over the micro-batch on all processes, because a loss sees no more of a step. So this is the only setting
/// whose result depends on how a step is split.
pub(crate) fn high_entropy(entropy: &[f32], mask: &[u8], quantile: f64) -> Vec<bool> {
    let mut counted: Vec<f32> = entropy.iter().zip(mask).filter(|&(_, &m)| m != 0).map(|(&e, _)| e).collect();
    counted.sort_by(f32::total_cmp);
    let Some(threshold) = interpolated(&counted, quantile as f32) else { return vec![false; mask.len()] };
    entropy.iter().zip(mask).map(|(&e, &m)| m != 0 && e >= threshold).collect()
}

/// Returns the quantile of sorted values, interpolated linearly. It uses f32 and torch's formula, so that a threshold that should equal a
/// value does.
fn interpolated(sorted: &[f32], quantile: f32) -> Option<f32> {
    let rank = quantile * (sorted.len().checked_sub(1)? as f32);
    let (below, weight) = (rank.floor(), rank - rank.floor());
    let (low, high) = (sorted[below as usize], sorted[rank.ceil() as usize]);
    Some(if weight < 0.5 { low + weight * (high - low) } else { high - (high - low) * (1.0 - weight) })
}

/// Returns whether a completion is close enough to the policy to be learned from with a negative advantage: the mean of
/// `sampling_logp - logp` must not exceed the threshold (DeepSeek-V3.2, arXiv 2512.02556, equation 9). Tokens with unknown sampling
/// probability (NaN) don't count.
pub(crate) fn near_policy(logp: &[f32], sampling_logp: &[f32], mask: &[u8], row: Range<usize>, threshold: f64) -> bool {
    masked_mean(mask, row, |i| known_log_ratio(sampling_logp[i], logp[i])) <= threshold
}

/// Returns the difference of two log-probabilities, or zero if one is unknown (NaN).
pub(crate) fn known_log_ratio(a: f32, b: f32) -> f64 {
    let log_ratio = f64::from(a) - f64::from(b);
    if log_ratio.is_nan() { 0.0 } else { log_ratio }
}
