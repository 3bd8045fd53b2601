//! Truncated importance sampling: how much likelier a completion is under the training's forward pass than where it was sampled, of
//! which the loss is a multiple.

use crate::settings::{CorrectionMode, Settings};
use rlhost_plugin_sdk::Metric;
use rlhost_plugin_sdk::rows::{counted, rows};

/// Returns the factor of each token's loss; masked tokens have 1.
pub(crate) fn factors(s: &Settings, old_logp: &[f32], sampling_logp: &[f32], mask: &[u8], offsets: &[u32]) -> Vec<f64> {
    use CorrectionMode::{SequenceMask, SequenceTruncate};
    let mut factors = vec![1.0; mask.len()];
    // Tokens of unknown sampling probability are not corrected.
    let away = |i: usize| Some(f64::from(old_logp[i]) - f64::from(sampling_logp[i])).filter(|d| !d.is_nan()).unwrap_or(0.0);
    for row in rows(offsets) {
        let tokens = counted(mask, row);
        let whole = matches!(s.vllm_importance_sampling_mode, SequenceTruncate | SequenceMask)
            .then(|| bounded(s, tokens.clone().map(away).sum::<f64>().exp()));
        tokens.for_each(|i| factors[i] = whole.unwrap_or_else(|| bounded(s, away(i).exp())));
    }
    factors
}

/// Returns a ratio within the bounds, or zero.
fn bounded(s: &Settings, ratio: f64) -> f64 {
    let least = s.vllm_importance_sampling_clip_min.unwrap_or(f64::NEG_INFINITY);
    let most = s.vllm_importance_sampling_clip_max.value().unwrap_or(f64::INFINITY);
    match s.vllm_importance_sampling_mode {
        CorrectionMode::TokenTruncate | CorrectionMode::SequenceTruncate => ratio.max(least).min(most),
        CorrectionMode::TokenMask | CorrectionMode::SequenceMask if ratio < least || ratio > most => 0.0,
        CorrectionMode::TokenMask | CorrectionMode::SequenceMask => ratio,
    }
}

/// Returns the metrics of the factors: of tokens, or of completions where they have one each.
pub(crate) fn metrics(s: &Settings, factors: &[f64], mask: &[u8], offsets: &[u32]) -> Vec<Metric> {
    use CorrectionMode::{TokenMask, TokenTruncate};
    let by_token = matches!(s.vllm_importance_sampling_mode, TokenTruncate | TokenMask);
    let of_row = |row| counted(mask, row).map(|i| factors[i]).take(if by_token { usize::MAX } else { 1 });
    let all: Vec<f64> = rows(offsets).flat_map(of_row).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let name = |which: &str| format!("sampling/importance_sampling_ratio/{which}");
    vec![
        Metric::min(name("min"), all.iter().copied().fold(f64::INFINITY, f64::min)),
        Metric::ratio(name("mean"), all.iter().sum(), all.len() as f64),
        Metric::max(name("max"), all.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    ]
}
